-- Statements about users, API tokens, sessions, the audit log and credentials.

-- put_user --
-- The moment of creation stays what it was.
INSERT INTO noetl."user" (name, password_hash, roles, email, display_name, created_at)
VALUES (%(name)s, %(password_hash)s, %(roles)s, %(email)s, %(display_name)s, %(created_at)s)
ON CONFLICT (name) DO UPDATE
   SET password_hash = excluded.password_hash,
       roles = excluded.roles,
       email = excluded.email,
       display_name = excluded.display_name

-- user --
SELECT name, password_hash, roles, email, display_name, created_at
  FROM noetl."user"
 WHERE name = %(name)s

-- users --
SELECT name, password_hash, roles, email, display_name, created_at
  FROM noetl."user"
 ORDER BY name

-- delete_user --
DELETE FROM noetl."user" WHERE name = %(name)s

-- delete_sessions_of --
DELETE FROM noetl.session WHERE "user" = %(name)s

-- put_token --
INSERT INTO noetl.token (name, digest, roles, pools, created_at, expires_at)
VALUES (%(name)s, %(digest)s, %(roles)s, %(pools)s, %(created_at)s, %(expires_at)s)
ON CONFLICT (name) DO NOTHING

-- token --
SELECT name, digest, roles, pools, created_at, expires_at FROM noetl.token WHERE digest = %(digest)s

-- tokens --
SELECT name, digest, roles, pools, created_at, expires_at FROM noetl.token ORDER BY name

-- delete_token --
DELETE FROM noetl.token WHERE name = %(name)s

-- put_session --
INSERT INTO noetl.session
       (session_id, digest, "user", created_at, expires_at, last_activity_at, client_ip)
VALUES (%(session_id)s, %(digest)s, %(user)s, %(created_at)s, %(expires_at)s, %(last_activity_at)s, %(client_ip)s)
ON CONFLICT (session_id) DO NOTHING

-- touch_session --
UPDATE noetl.session
   SET expires_at = %(expires_at)s,
       last_activity_at = %(last_activity_at)s
 WHERE session_id = %(session_id)s

-- session --
SELECT session_id, digest, "user", created_at, expires_at, last_activity_at, client_ip
  FROM noetl.session
 WHERE digest = %(digest)s

-- sessions --
SELECT session_id, digest, "user", created_at, expires_at, last_activity_at, client_ip
  FROM noetl.session
 WHERE "user" = %(user)s
 ORDER BY created_at DESC, session_id DESC

-- delete_session --
DELETE FROM noetl.session WHERE session_id = %(session_id)s

-- delete_expired_sessions --
DELETE FROM noetl.session WHERE expires_at <= %(now)s

-- delete_expired_secrets --
DELETE FROM noetl.auth_cache WHERE expires_at <= %(now)s

-- forget_cached_secrets --
DELETE FROM noetl.auth_cache

-- put_audit --
INSERT INTO noetl.audit (at, who, action, target, execution_id, details)
VALUES (%(at)s, %(who)s, %(action)s, %(target)s, %(execution_id)s, %(details)s)

-- audit --
SELECT at, who, action, target, execution_id, details
  FROM noetl.audit
 ORDER BY position DESC
 LIMIT %(limit)s

-- put_cached_secret --
INSERT INTO noetl.auth_cache
       (cache_key, credential_name, credential_type, cache_type, scope_type, execution_id,
        parent_execution_id, data_encrypted, expires_at, created_at, accessed_at, access_count)
VALUES (%(cache_key)s, %(credential_name)s, %(credential_type)s, %(cache_type)s, %(scope_type)s, %(execution_id)s,
        %(parent_execution_id)s, %(data_encrypted)s, %(expires_at)s, %(created_at)s, %(accessed_at)s,
        %(access_count)s)
ON CONFLICT (cache_key) DO UPDATE
   SET data_encrypted = excluded.data_encrypted,
       expires_at = excluded.expires_at,
       accessed_at = excluded.accessed_at,
       access_count = auth_cache.access_count + 1

-- cached_secret --
SELECT cache_key, credential_name, credential_type, cache_type, scope_type, execution_id,
       parent_execution_id, data_encrypted, expires_at, created_at, accessed_at, access_count
  FROM noetl.auth_cache
 WHERE cache_key = %(cache_key)s
   AND expires_at > %(now)s

-- put_credential --
INSERT INTO noetl.credential (name, type, data, description, tags, playbooks, created_at, updated_at)
VALUES (
    %(name)s, %(type)s, %(data)s, %(description)s, %(tags)s, %(playbooks)s, %(created_at)s,
    %(updated_at)s
)
    ON CONFLICT (name) DO UPDATE SET type = excluded.type, data = excluded.data,
       description = excluded.description, tags = excluded.tags, playbooks = excluded.playbooks,
       updated_at = excluded.updated_at

-- credential --
SELECT name, type, data, description, tags, playbooks, created_at, updated_at
  FROM noetl.credential
 WHERE name = %(name)s

-- credentials --
SELECT name, type, data, description, tags, playbooks, created_at, updated_at
  FROM noetl.credential
 ORDER BY name

-- reseal_credential --
UPDATE noetl.credential SET data = %(new)s WHERE name = %(name)s AND data = %(old)s

-- delete_credential --
DELETE FROM noetl.credential WHERE name = %(name)s
