-- Statements about users, API tokens, sessions, the audit log and credentials, for every store.

-- put_user --
-- The moment of creation stays what it was.
INSERT INTO noetl.user (name, password_hash, roles, email, display_name, created_at)
VALUES (:name, :password_hash, :roles, :email, :display_name, :created_at)
ON CONFLICT (name) DO UPDATE
   SET password_hash = excluded.password_hash,
       roles = excluded.roles,
       email = excluded.email,
       display_name = excluded.display_name

-- user --
SELECT name, password_hash, roles, email, display_name, created_at
  FROM noetl.user
 WHERE name = :name

-- users --
SELECT name, password_hash, roles, email, display_name, created_at
  FROM noetl.user
 ORDER BY name

-- delete_user --
DELETE FROM noetl.user WHERE name = :name

-- delete_sessions_of --
DELETE FROM noetl.session WHERE "user" = :name

-- put_token --
INSERT INTO noetl.token (name, digest, roles, pools, created_at, expires_at)
VALUES (:name, :digest, :roles, :pools, :created_at, :expires_at)
ON CONFLICT (name) DO NOTHING

-- token --
SELECT name, digest, roles, pools, created_at, expires_at FROM noetl.token WHERE digest = :digest

-- tokens --
SELECT name, digest, roles, pools, created_at, expires_at FROM noetl.token ORDER BY name

-- delete_token --
DELETE FROM noetl.token WHERE name = :name

-- put_session --
INSERT INTO noetl.session
       (session_id, digest, "user", created_at, expires_at, last_activity_at, client_ip)
VALUES (:session_id, :digest, :user, :created_at, :expires_at, :last_activity_at, :client_ip)
ON CONFLICT (session_id) DO NOTHING

-- touch_session --
UPDATE noetl.session
   SET expires_at = :expires_at,
       last_activity_at = :last_activity_at
 WHERE session_id = :session_id

-- session --
SELECT session_id, digest, "user", created_at, expires_at, last_activity_at, client_ip
  FROM noetl.session
 WHERE digest = :digest

-- sessions --
SELECT session_id, digest, "user", created_at, expires_at, last_activity_at, client_ip
  FROM noetl.session
 WHERE "user" = :user
 ORDER BY created_at DESC, session_id DESC

-- delete_session --
DELETE FROM noetl.session WHERE session_id = :session_id

-- delete_expired_sessions --
DELETE FROM noetl.session WHERE expires_at <= :now

-- delete_expired_secrets --
DELETE FROM noetl.auth_cache WHERE expires_at <= :now

-- forget_cached_secrets --
DELETE FROM noetl.auth_cache

-- put_audit --
INSERT INTO noetl.audit (at, who, action, target, execution_id, details)
VALUES (:at, :who, :action, :target, :execution_id, :details)

-- audit --
SELECT position, at, who, action, target, execution_id, details
  FROM noetl.audit
 WHERE position < :before
 ORDER BY position DESC
 LIMIT :limit

-- put_cached_secret --
INSERT INTO noetl.auth_cache AS stored
       (cache_key, credential_name, credential_type, cache_type, scope_type, execution_id,
        parent_execution_id, data_encrypted, expires_at, created_at, accessed_at, access_count)
VALUES (:cache_key, :credential_name, :credential_type, :cache_type, :scope_type, :execution_id,
        :parent_execution_id, :data_encrypted, :expires_at, :created_at, :accessed_at,
        :access_count)
ON CONFLICT (cache_key) DO UPDATE
   SET data_encrypted = excluded.data_encrypted,
       expires_at = excluded.expires_at,
       accessed_at = excluded.accessed_at,
       access_count = stored.access_count + 1

-- cached_secret --
SELECT cache_key, credential_name, credential_type, cache_type, scope_type, execution_id,
       parent_execution_id, data_encrypted, expires_at, created_at, accessed_at, access_count
  FROM noetl.auth_cache
 WHERE cache_key = :cache_key
   AND expires_at > :now

-- put_credential --
INSERT INTO noetl.credential (name, type, data, description, tags, playbooks, created_at, updated_at)
VALUES (:name, :type, :data, :description, :tags, :playbooks, :created_at, :updated_at)
    ON CONFLICT (name) DO UPDATE SET type = excluded.type, data = excluded.data,
       description = excluded.description, tags = excluded.tags, playbooks = excluded.playbooks,
       updated_at = excluded.updated_at

-- credential --
SELECT name, type, data, description, tags, playbooks, created_at, updated_at
  FROM noetl.credential
 WHERE name = :name

-- credentials --
SELECT name, type, data, description, tags, playbooks, created_at, updated_at
  FROM noetl.credential
 ORDER BY name

-- reseal_credential --
UPDATE noetl.credential SET data = :new WHERE name = :name AND data = :old

-- delete_credential --
DELETE FROM noetl.credential WHERE name = :name
