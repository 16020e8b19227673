//! Baselines of the machine itself, measured in the same run: sockets without any code of this
//! project.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use anyhow::{Result, anyhow};

use crate::quantile::quantile;

/// Bytes of one message of the ping-pong: about a small call and its reply.
const MESSAGE: usize = 64;

/// Pseudo-random bytes (xorshift), so that compression gains nothing.
pub fn random(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Round-trip times in µs of a bare ping-pong over a Unix stream socket between two processes on
/// these CPUs: (p50, p99). The CPU of the other process decides the result, because waking another
/// core costs several times as much as the message. Therefore both sides are pinned, like the
/// processes under comparison.
///
/// # Errors
/// If the sockets fail or a CPU does not exist.
pub fn ping_pong(rounds: usize, cpus: (usize, usize)) -> Result<(f64, f64)> {
    let mut client = echo_process(MESSAGE, cpus.1)?;
    let before = affinity()?;
    pin(cpus.0)?;
    let result = measure_ping_pong(&mut client, rounds);
    set_affinity(&before)?;
    result
}

fn measure_ping_pong(client: &mut UnixStream, rounds: usize) -> Result<(f64, f64)> {
    let mut message = [7u8; MESSAGE];
    let mut samples = Vec::with_capacity(rounds);
    for i in 0..rounds + 100 {
        let start = Instant::now();
        client.write_all(&message)?;
        client.read_exact(&mut message)?;
        if i >= 100 {
            samples.push(start.elapsed().as_secs_f64() * 1e6);
        }
    }
    Ok((quantile(&mut samples, 0.5), quantile(&mut samples, 0.99)))
}

/// Forks a process that sends each message back. The process ends when the socket closes.
fn echo_process(message: usize, cpu: usize) -> Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    child(&ours, move || {
        if pin(cpu).is_err() {
            return;
        }
        let mut theirs = theirs;
        let mut buffer = vec![0u8; message];
        while theirs.read_exact(&mut buffer).is_ok() && theirs.write_all(&buffer).is_ok() {}
    })?;
    Ok(ours)
}

/// The CPUs that this thread may use.
fn affinity() -> Result<libc::cpu_set_t> {
    // SAFETY: a set of bits, for which all zeroes are a valid value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: writes at most the size given.
    match unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) } {
        0 => Ok(set),
        _ => Err(anyhow!(
            "sched_getaffinity: {}",
            std::io::Error::last_os_error()
        )),
    }
}

fn set_affinity(set: &libc::cpu_set_t) -> Result<()> {
    // SAFETY: reads the size given.
    match unsafe { libc::sched_setaffinity(0, size_of_val(set), set) } {
        0 => Ok(()),
        _ => Err(anyhow!(
            "sched_setaffinity: {}",
            std::io::Error::last_os_error()
        )),
    }
}

fn pin(cpu: usize) -> Result<()> {
    // SAFETY: a set of bits, for which all zeroes are a valid value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: CPU_SET bounds the index by the size of the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    set_affinity(&set)
}

/// Runs `work` in a forked child. The child closes its copy of `other_end`, so that it sees the end
/// of the connection when this process closes `other_end`. The caller must be single-threaded.
fn child(other_end: &UnixStream, work: impl FnOnce()) -> Result<()> {
    // SAFETY: called before this process has any other thread; the child only uses its socket and
    // its own heap, and leaves without running destructors.
    match unsafe { libc::fork() } {
        -1 => Err(anyhow!("fork: {}", std::io::Error::last_os_error())),
        0 => {
            // SAFETY: a descriptor of this process, which the child never uses again.
            unsafe { libc::close(other_end.as_raw_fd()) };
            work();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(0) }
        }
        _ => Ok(()),
    }
}

/// GB/s at which a Unix stream socket moves `len` bytes from the memory of one process to the
/// memory of another: median of `rounds` rounds, written and read in pieces of `piece` bytes. Both
/// sides have memory for all `len` bytes, like the two ends of a copy. A transfer between small
/// buffers is faster, because small buffers stay in the cache.
///
/// # Errors
/// If the sockets fail.
pub fn bandwidth(piece: usize, len: usize, rounds: usize) -> Result<f64> {
    let (mut ours, theirs) = UnixStream::pair()?;
    child(&ours, move || {
        let mut theirs = theirs;
        let mut memory = vec![1u8; len];
        loop {
            for part in memory.chunks_mut(piece) {
                if theirs.read_exact(part).is_err() {
                    return;
                }
            }
            if theirs.write_all(&[1]).is_err() {
                return;
            }
        }
    })?;
    let data = random(len);
    let mut samples = Vec::with_capacity(rounds);
    // The first round is not counted, because it touches the memory for the first time.
    for round in 0..=rounds {
        let start = Instant::now();
        for part in data.chunks(piece) {
            ours.write_all(part)?;
        }
        ours.read_exact(&mut [0])?;
        if round > 0 {
            samples.push(len as f64 / start.elapsed().as_secs_f64() / 1e9);
        }
    }
    Ok(quantile(&mut samples, 0.5))
}
