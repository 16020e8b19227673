//! Converts records to rows: loads all records, and saves the difference between two catalogs.

use std::collections::BTreeMap;

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::Serialize;
use serde::de::DeserializeOwned;
use vgpu_api::{AuditEntry, Event, VmUsage};

use super::catalog::Catalog;
use super::command::{AuditActor, Command, Outcome};
use super::integer::int;
use super::number_file;
use super::selection::{self, AuditSelection, Selection};
use crate::model::{AssignmentRecord, GpuRecord, PoolRecord, UsageRecord, VmRecord};

type Sql<T> = Result<T, rusqlite::Error>;

const HOST_WEIGHTS: &str = "host_weights";
const LAST_GENERATION: &str = "last_generation";
const CLEAN_STOP: &str = "clean_stop";

/// Time in ms for which a command under an idempotency key is remembered.
const REQUEST_KEPT_MS: u64 = 24 * 3_600_000;

pub(super) fn load_catalog(connection: &Connection) -> Sql<Catalog> {
    let gpus = all(connection, "SELECT * FROM gpus", read_gpu)?;
    let pools = all(connection, "SELECT * FROM pools", read_pool)?;
    let assignments = all(connection, "SELECT * FROM assignments", read_assignment)?;
    let vms = all(connection, "SELECT * FROM vms", read_vm)?;
    let host_weights = setting(connection, HOST_WEIGHTS)?;
    let last_generation = setting(connection, LAST_GENERATION)?;
    Ok(Catalog {
        gpus: gpus
            .into_iter()
            .map(|gpu| (gpu.seen.uuid.clone(), gpu))
            .collect(),
        pools: pools
            .into_iter()
            .map(|pool| (pool.name.clone(), pool))
            .collect(),
        assignments: assignments
            .into_iter()
            .map(|a| ((a.gpu_uuid.clone(), a.pool.clone()), a))
            .collect(),
        vms: vms.into_iter().map(|vm| (vm.vm_id, vm)).collect(),
        host_weights: host_weights.unwrap_or_default(),
        last_generation: last_generation.unwrap_or_default(),
    })
}

/// Saves the difference. Foreign keys fix the order: parents are inserted first and deleted last.
pub(super) fn save_difference(connection: &Connection, old: &Catalog, new: &Catalog) -> Sql<()> {
    for gone in missing(&old.assignments, &new.assignments) {
        let sql = "DELETE FROM assignments WHERE gpu_uuid = ?1 AND pool = ?2";
        connection
            .prepare_cached(sql)?
            .execute(params![gone.0, gone.1])?;
    }
    for gone in missing(&old.vms, &new.vms) {
        connection
            .prepare_cached("DELETE FROM vms WHERE vm_id = ?1")?
            .execute([gone])?;
    }
    for gone in missing(&old.pools, &new.pools) {
        connection
            .prepare_cached("DELETE FROM pools WHERE name = ?1")?
            .execute([gone])?;
    }
    for gone in missing(&old.gpus, &new.gpus) {
        connection
            .prepare_cached("DELETE FROM gpus WHERE uuid = ?1")?
            .execute([gone])?;
    }
    for gpu in different(&old.gpus, &new.gpus) {
        save_gpu(connection, gpu)?;
    }
    for pool in different(&old.pools, &new.pools) {
        save_pool(connection, pool)?;
    }
    for vm in different(&old.vms, &new.vms) {
        save_vm(connection, vm)?;
    }
    for assignment in different(&old.assignments, &new.assignments) {
        let sql = "INSERT OR REPLACE INTO assignments VALUES (?1, ?2, ?3)";
        connection.prepare_cached(sql)?.execute(params![
            assignment.gpu_uuid,
            assignment.pool,
            int(assignment.since_unix_ms)
        ])?;
    }
    if old.host_weights != new.host_weights {
        set(connection, HOST_WEIGHTS, &new.host_weights)?;
    }
    if old.last_generation != new.last_generation {
        set(connection, LAST_GENERATION, &new.last_generation)?;
    }
    Ok(())
}

fn missing<'a, K: Ord, V>(
    old: &'a BTreeMap<K, V>,
    new: &'a BTreeMap<K, V>,
) -> impl Iterator<Item = &'a K> {
    old.keys().filter(|key| !new.contains_key(key))
}

fn different<'a, K: Ord, V: PartialEq>(
    old: &'a BTreeMap<K, V>,
    new: &'a BTreeMap<K, V>,
) -> impl Iterator<Item = &'a V> {
    new.iter()
        .filter(|(key, value)| old.get(key) != Some(value))
        .map(|(_, value)| value)
}

fn read_gpu(row: &Row<'_>) -> Sql<GpuRecord> {
    Ok(GpuRecord {
        gpu_id: row.get("gpu_id")?,
        seen: json(row, "seen")?,
        state: json(row, "state")?,
        state_reason: row.get("state_reason")?,
        first_seen_unix_ms: uint(row, "first_seen_ms")?,
        last_seen_unix_ms: uint(row, "last_seen_ms")?,
    })
}

fn save_gpu(connection: &Connection, gpu: &GpuRecord) -> Sql<()> {
    let sql = "INSERT INTO gpus (uuid, gpu_id, state, state_reason, seen, first_seen_ms, \
               last_seen_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (uuid) DO UPDATE SET \
               gpu_id = ?2, state = ?3, state_reason = ?4, seen = ?5, first_seen_ms = ?6, \
               last_seen_ms = ?7";
    connection.prepare_cached(sql)?.execute(params![
        gpu.seen.uuid,
        gpu.gpu_id,
        text(&gpu.state)?,
        gpu.state_reason,
        text(&gpu.seen)?,
        int(gpu.first_seen_unix_ms),
        int(gpu.last_seen_unix_ms),
    ])?;
    Ok(())
}

fn read_pool(row: &Row<'_>) -> Sql<PoolRecord> {
    Ok(PoolRecord {
        name: row.get("name")?,
        // Settings that the row does not have get the built-in default.
        settings: json(row, "settings")?,
        created_unix_ms: uint(row, "created_ms")?,
    })
}

fn save_pool(connection: &Connection, pool: &PoolRecord) -> Sql<()> {
    let sql = "INSERT INTO pools (name, settings, created_ms) VALUES (?1, ?2, ?3) \
               ON CONFLICT (name) DO UPDATE SET settings = ?2, created_ms = ?3";
    connection.prepare_cached(sql)?.execute(params![
        pool.name,
        text(&pool.settings)?,
        int(pool.created_unix_ms)
    ])?;
    Ok(())
}

fn read_assignment(row: &Row<'_>) -> Sql<AssignmentRecord> {
    Ok(AssignmentRecord {
        gpu_uuid: row.get("gpu_uuid")?,
        pool: row.get("pool")?,
        since_unix_ms: uint(row, "since_ms")?,
    })
}

fn read_vm(row: &Row<'_>) -> Sql<VmRecord> {
    let quarantine: Option<String> = row.get("quarantine")?;
    Ok(VmRecord {
        vm_id: row.get("vm_id")?,
        name: row.get("name")?,
        pool: row.get("pool")?,
        priority: json(row, "priority")?,
        factor_percent: row.get("factor_percent")?,
        generation: uint(row, "generation")?,
        cid: row.get("cid")?,
        socket: row.get("socket")?,
        peer_uid: row.get("peer_uid")?,
        limits: json(row, "limits")?,
        quarantine: match quarantine {
            Some(_) => Some(json(row, "quarantine")?),
            None => None,
        },
        slice_us: row
            .get::<_, Option<i64>>("slice_us")?
            .and_then(|us| us.try_into().ok()),
        gang: row.get("gang")?,
        gpus: match row.get::<_, Option<String>>("gpus")? {
            Some(_) => Some(json(row, "gpus")?),
            None => None,
        },
        quarantines: row.get("quarantines")?,
        quarantines_unix_ms: uint(row, "quarantines_ms")?,
        strikes: row.get("strikes")?,
        last_strike_unix_ms: uint(row, "last_strike_ms")?,
        registered_unix_ms: uint(row, "registered_ms")?,
        origin: row.get("origin")?,
    })
}

fn save_vm(connection: &Connection, vm: &VmRecord) -> Sql<()> {
    let sql = "INSERT INTO vms (vm_id, name, pool, priority, factor_percent, generation, cid, \
               socket, peer_uid, limits, quarantine, strikes, last_strike_ms, registered_ms, \
               slice_us, gang, gpus, quarantines, quarantines_ms, origin) VALUES (?1, ?2, ?3, ?4, ?5, ?6, \
               ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20) \
               ON CONFLICT (vm_id) DO UPDATE SET name = ?2, pool = ?3, priority = ?4, \
               factor_percent = ?5, generation = ?6, cid = ?7, socket = ?8, peer_uid = ?9, \
               limits = ?10, quarantine = ?11, strikes = ?12, last_strike_ms = ?13, \
               registered_ms = ?14, slice_us = ?15, gang = ?16, gpus = ?17, quarantines = ?18, \
               quarantines_ms = ?19, origin = ?20";
    let gpus = vm.gpus.as_ref().map(text).transpose()?;
    let quarantine = vm.quarantine.as_ref().map(text).transpose()?;
    connection.prepare_cached(sql)?.execute(params![
        vm.vm_id,
        vm.name,
        vm.pool,
        text(&vm.priority)?,
        vm.factor_percent,
        int(vm.generation),
        vm.cid,
        vm.socket,
        vm.peer_uid,
        text(&vm.limits)?,
        quarantine,
        vm.strikes,
        int(vm.last_strike_unix_ms),
        int(vm.registered_unix_ms),
        vm.slice_us.map(int),
        vm.gang,
        gpus,
        vm.quarantines,
        int(vm.quarantines_unix_ms),
        vm.origin,
    ])?;
    Ok(())
}

pub(super) fn load_usage(connection: &Connection) -> Sql<BTreeMap<u32, UsageRecord>> {
    let rows = all(connection, "SELECT * FROM usage", |row| {
        let total = VmUsage {
            gpu_ns: uint(row, "gpu_ns")?,
            wait_ns: uint(row, "wait_ns")?,
            throttled_ns: uint(row, "throttled_ns")?,
            calls: uint(row, "calls")?,
            bytes_in: uint(row, "bytes_in")?,
            bytes_out: uint(row, "bytes_out")?,
            sessions: uint(row, "sessions")?,
            kills: uint(row, "kills")?,
            soft_limits: uint(row, "soft_limits")?,
            refusals: uint(row, "refusals")?,
            rate_limited: uint(row, "rate_limited")?,
            turns: uint(row, "turns")?,
            memory_peak_bytes: uint(row, "memory_peak")?,
            pinned_peak_bytes: uint(row, "pinned_peak")?,
        };
        let (generation, debt_ns) = (uint(row, "generation")?, uint(row, "debt_ns")?);
        Ok((
            row.get::<_, u32>("vm_id")?,
            UsageRecord {
                generation,
                total,
                debt_ns,
                since_unix_ms: uint(row, "since_ms")?,
            },
        ))
    })?;
    Ok(rows.into_iter().collect())
}

/// Saves totals. Totals of an ended registration are dropped.
pub(super) fn save_usage(connection: &Connection, vm_id: u32, usage: &UsageRecord) -> Sql<()> {
    let sql = "INSERT OR REPLACE INTO usage (vm_id, generation, debt_ns, gpu_ns, wait_ns, \
               throttled_ns, calls, bytes_in, bytes_out, sessions, kills, soft_limits, refusals, \
               rate_limited, turns, memory_peak, pinned_peak, since_ms) SELECT vm_id, generation, ?3, \
               ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18 FROM vms WHERE vm_id = ?1 AND generation = ?2";
    let total = &usage.total;
    connection.prepare_cached(sql)?.execute(params![
        vm_id,
        int(usage.generation),
        int(usage.debt_ns),
        int(total.gpu_ns),
        int(total.wait_ns),
        int(total.throttled_ns),
        int(total.calls),
        int(total.bytes_in),
        int(total.bytes_out),
        int(total.sessions),
        int(total.kills),
        int(total.soft_limits),
        int(total.refusals),
        int(total.rate_limited),
        int(total.turns),
        int(total.memory_peak_bytes),
        int(total.pinned_peak_bytes),
        int(usage.since_unix_ms),
    ])?;
    Ok(())
}

/// The number of the last line of the audit trail.
pub(super) fn last_change(connection: &Connection) -> Sql<u64> {
    let sql = "SELECT coalesce(max(seq), 0) AS seq FROM audit";
    connection.query_row(sql, [], |row| count(row, "seq"))
}

pub(super) fn last_event(connection: &Connection) -> Sql<u64> {
    let sql = "SELECT coalesce(max(seq), 0) AS seq FROM events";
    connection.query_row(sql, [], |row| count(row, "seq"))
}

/// Whether the last vgpud stopped in order, so that all its published events are saved. Clears the
/// mark for the present run.
pub(super) fn take_clean_stop(connection: &Connection) -> Sql<bool> {
    let clean = setting(connection, CLEAN_STOP)?.unwrap_or(false);
    // On a full disk the mark cannot be cleared; the last stop then counts as a crash.
    Ok(clean && set(connection, CLEAN_STOP, &false).is_ok())
}

pub(super) fn save_clean_stop(connection: &Connection) -> Sql<()> {
    set(connection, CLEAN_STOP, &true)
}

pub(super) fn save_event(connection: &Connection, event: &Event) -> Sql<()> {
    let sql = "INSERT OR REPLACE INTO events VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
    connection.prepare_cached(sql)?.execute(params![
        int(event.seq),
        int(event.at_unix_ms),
        text(&event.kind)?,
        text(&event.severity)?,
        event.vm_id,
        event.session_id.map(int),
        event.gpu_uuid,
        event.pool,
        event.message,
    ])?;
    Ok(())
}

/// Deletes all events except the newest `kept`.
pub(super) fn trim_events(connection: &Connection, kept: u64) -> Sql<()> {
    let sql = "DELETE FROM events WHERE seq <= (SELECT seq FROM events ORDER BY seq DESC \
               LIMIT 1 OFFSET ?1)";
    connection.prepare_cached(sql)?.execute([int(kept)])?;
    Ok(())
}

pub(super) fn load_events(
    connection: &Connection,
    since: u64,
    before: u64,
    limit: usize,
) -> Sql<Vec<Event>> {
    let sql = "SELECT * FROM events WHERE seq > ?1 AND seq < ?2 ORDER BY seq LIMIT ?3";
    let mut statement = connection.prepare_cached(sql)?;
    let bounds = params![int(since), int(before), int(limit as u64)];
    statement.query_map(bounds, read_event)?.collect()
}

/// The newest selected events before `before`, newest first.
pub(super) fn load_newest(
    connection: &Connection,
    before: u64,
    limit: usize,
    selection: &Selection,
) -> Sql<Vec<Event>> {
    let wanted = selection::of_events();
    let sql =
        format!("SELECT * FROM events WHERE {wanted} AND seq < ?5 ORDER BY seq DESC LIMIT ?6");
    let mut statement = connection.prepare_cached(&sql)?;
    let [from, until, severity, vm_id] = selection.parameters();
    let bounds = params![from, until, severity, vm_id, int(before), int(limit as u64)];
    statement.query_map(bounds, read_event)?.collect()
}

fn read_event(row: &Row<'_>) -> Sql<Event> {
    Ok(Event {
        seq: uint(row, "seq")?,
        at_unix_ms: uint(row, "at_ms")?,
        kind: json(row, "kind")?,
        severity: json(row, "severity")?,
        vm_id: row.get("vm_id")?,
        session_id: row
            .get::<_, Option<i64>>("session_id")?
            .and_then(|id| id.try_into().ok()),
        gpu_uuid: row.get("gpu_uuid")?,
        pool: row.get("pool")?,
        message: row.get("message")?,
    })
}

/// Adds a line to the audit trail and returns its number.
pub(super) fn save_audit(
    connection: &Connection,
    now_unix_ms: u64,
    actor: &AuditActor,
    (action, target, detail): (&str, &str, &str),
) -> Sql<u64> {
    let sql = "INSERT INTO audit (at_ms, actor, pid, action, target, detail) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    connection.prepare_cached(sql)?.execute(params![
        int(now_unix_ms),
        actor.name,
        actor.pid,
        action,
        target,
        detail,
    ])?;
    Ok(u64::try_from(connection.last_insert_rowid()).unwrap_or(0))
}

/// The selected lines after `since`, or the newest ones; oldest first.
pub(super) fn load_audit(
    connection: &Connection,
    since: Option<u64>,
    limit: usize,
    selection: &AuditSelection,
) -> Sql<Vec<AuditEntry>> {
    let order = if since.is_some() { "ASC" } else { "DESC" };
    let wanted = selection::of_audit();
    let sql = format!(
        "SELECT * FROM (SELECT * FROM audit WHERE {wanted} AND seq > ?5 ORDER BY seq {order} LIMIT ?6) \
         ORDER BY seq"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let [from, until, severity, vm_id] = selection.of.parameters();
    let (after, limit) = (int(since.unwrap_or(0)), int(limit as u64));
    let AuditSelection {
        actor,
        action,
        target,
        ..
    } = selection;
    let bounds = params![
        from, until, severity, vm_id, after, limit, actor, action, target
    ];
    let rows = statement.query_map(bounds, |row| {
        Ok(AuditEntry {
            seq: uint(row, "seq")?,
            at_unix_ms: uint(row, "at_ms")?,
            actor: row.get("actor")?,
            pid: row.get("pid")?,
            action: row.get("action")?,
            target: row.get("target")?,
            detail: row.get("detail")?,
        })
    })?;
    rows.collect()
}

/// The command and outcome saved under a key of this actor.
pub(super) fn load_request(
    connection: &Connection,
    actor: &AuditActor,
    key: &str,
) -> Sql<Option<(Command, Outcome)>> {
    let sql = "SELECT command, outcome FROM requests WHERE actor = ?1 AND key = ?2";
    let read = |row: &Row<'_>| Ok((json(row, "command")?, json(row, "outcome")?));
    connection
        .prepare_cached(sql)?
        .query_row([&actor.name, key], read)
        .optional()
}

pub(super) fn save_request(
    connection: &Connection,
    now_unix_ms: u64,
    actor: &AuditActor,
    key: &str,
    command: &Command,
    outcome: &Outcome,
) -> Sql<()> {
    let oldest = now_unix_ms.saturating_sub(REQUEST_KEPT_MS);
    connection
        .prepare_cached("DELETE FROM requests WHERE at_ms < ?1")?
        .execute([int(oldest)])?;
    let sql = "INSERT INTO requests VALUES (?1, ?2, ?3, ?4, ?5)";
    connection.prepare_cached(sql)?.execute(params![
        actor.name,
        key,
        int(now_unix_ms),
        text(command)?,
        text(outcome)?,
    ])?;
    Ok(())
}

fn all<T>(connection: &Connection, sql: &str, read: impl FnMut(&Row<'_>) -> Sql<T>) -> Sql<Vec<T>> {
    let mut statement = connection.prepare(sql)?;
    let rows = statement.query_map([], read)?;
    rows.collect()
}

fn setting<T: DeserializeOwned>(connection: &Connection, key: &str) -> Sql<Option<T>> {
    let sql = "SELECT value FROM settings WHERE key = ?1";
    connection
        .query_row(sql, [key], |row| json(row, "value"))
        .optional()
}

fn set(connection: &Connection, key: &str, value: &impl Serialize) -> Sql<()> {
    let sql = "INSERT OR REPLACE INTO settings VALUES (?1, ?2)";
    connection.execute(sql, params![key, text(value)?])?;
    Ok(())
}

fn json<T: DeserializeOwned>(row: &Row<'_>, column: &str) -> Sql<T> {
    let value: String = row.get(column)?;
    serde_json::from_str(&value).map_err(|error| {
        let index = row.as_ref().column_index(column).unwrap_or(0);
        rusqlite::Error::FromSqlConversionFailure(index, Type::Text, Box::new(error))
    })
}

fn text(value: &impl Serialize) -> Sql<String> {
    serde_json::to_string(value)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

fn uint(row: &Row<'_>, column: &str) -> Sql<u64> {
    let value: i64 = row.get(column)?;
    u64::try_from(value).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(0, value))
}

/// Reads a counter, which never exceeds [`number_file::MOST`] by counting.
fn count(row: &Row<'_>, column: &str) -> Sql<u64> {
    let value = uint(row, column)?;
    if value <= number_file::MOST {
        return Ok(value);
    }
    Err(rusqlite::Error::IntegralValueOutOfRange(0, int(value)))
}
