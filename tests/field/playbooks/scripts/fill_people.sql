INSERT INTO people (name, born) VALUES ('Ada', 1815), ('Grace', 1906), ('Edsger', 1930);
