"""E1: the examples that ask weather services, airlines and language models."""

from __future__ import annotations

from examples.demo_server import DEMO_TOKEN, FLIGHTS_TOKEN
from tests.examples.system import Bench, Run, example, on_bench
from tests.examples.test_examples import DEMO_URL, rows, run


def test_weather_loop_example_warns_of_warm_cities_and_survives_an_unknown_one(shop):
    warm = run("weather_loop_example", None, shop)
    calm = run("weather_loop_example", {"threshold": 30}, shop)

    stats = {"total": 4, "success": 3, "failed": 1}
    assert warm.result == {"warned": ["Lisbon", "Nairobi"], "looked_at": stats}
    assert calm.result == {"warned": [], "looked_at": stats}
    assert warm.step("all_calm") == {}


def test_amadeus_ai_api_asks_the_model_the_airline_and_the_model_again(shop, tmp_path):
    text = example("amadeus_ai_api").replace(DEMO_URL, shop.url)
    place = {"database": f"{tmp_path}/flights.db"}
    client = {"client_id": "demo", "client_secret": DEMO_TOKEN}

    async def work(bench: Bench) -> tuple[Run, Run]:
        keys = bench.system.keys
        await keys.put("openai", "bearer", {"token": DEMO_TOKEN})
        where = f"{shop.url}/v1/security/oauth2/token"
        await keys.put("amadeus", "oauth2", {"type": "oauth2", "token_url": where, **client})
        return await bench.run(text, place), await bench.run(text, {"question": "Hm?", **place})

    done, hm = on_bench(work)

    assert done.result == "There are 3 offers from 200 EUR."
    assert rows(tmp_path / "flights.db", "SELECT answer FROM answers") == [(done.result,)]
    assert hm.result.startswith("I did not understand the question: ValueError: the model left out")
    assert shop.paths("GET") == ["/v2/shopping/flight-offers"]
    assert DEMO_TOKEN not in str(done)
    assert FLIGHTS_TOKEN not in str(done)
