//! The thread that reads data that is not in memory: checks of the whole file, old events, the
//! audit trail. The thread has its own connection, so that no read delays a command. Reads run one
//! after another, so that they take at most one core.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender};
use rusqlite::{Connection, InterruptHandle};
use tokio::sync::oneshot;
use vgpu_api::{ErrorCode, ErrorDetail};

use super::command::refuse;
use super::{StoreError, close, schema, stopped, try_send};

/// Largest number of waiting reads.
const QUEUE: usize = 32;
/// Interval at which a running read is interrupted while the store closes.
const INTERRUPT_EVERY: Duration = Duration::from_millis(1);

type Query = Box<dyn FnOnce(&Connection) + Send>;

pub(super) struct Reader {
    /// `None` once closed. A channel keeps messages even if the receiver is gone: the callers would
    /// wait for an answer as long as the sender exists.
    queries: Mutex<Option<Sender<Query>>>,
    interrupt: InterruptHandle,
    closing: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

impl Reader {
    /// Opens a second connection to a database that is already open.
    pub(super) fn start(file: &Path) -> Result<Self, StoreError> {
        let connection = schema::open_to_read(file)?;
        let interrupt = connection.get_interrupt_handle();
        let (queries, queue) = crossbeam::channel::bounded(QUEUE);
        let closing = Arc::new(AtomicBool::new(false));
        let ending = closing.clone();
        let thread = std::thread::Builder::new()
            .name("store-read".into())
            .spawn(move || serve(&connection, &queue, &ending))
            .map_err(|error| StoreError::Open {
                file: file.to_path_buf(),
                message: format!("cannot start the reading thread: {error}"),
            })?;
        Ok(Self {
            queries: Mutex::new(Some(queries)),
            interrupt,
            closing,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Runs a query after the earlier queries.
    ///
    /// # Errors
    /// If too many queries wait, or vgpud is stopping. The inner error is SQLite's.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> Result<Result<T, rusqlite::Error>, ErrorDetail> {
        let (reply, answer) = oneshot::channel();
        let query: Query = Box::new(move |connection| {
            // A query whose caller has gone is skipped.
            if !reply.is_closed() {
                let _ = reply.send(query(connection));
            }
        });
        try_send(&self.queries, query)?.map_err(|_| {
            refuse(
                ErrorCode::RateLimited,
                format!("The state database is busy: {QUEUE} reads of it wait already."),
                "Commands are not held up by it. Try again in a moment.",
            )
        })?;
        answer.await.map_err(|_| stopped())
    }

    /// Interrupts the running query, drops the waiting queries, and closes the connection.
    pub(super) fn close(&self) {
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(thread) = thread else { return };
        self.closing.store(true, Ordering::SeqCst);
        close(&self.queries);
        while !thread.is_finished() {
            // Repeated, because an interrupt affects only queries that already run.
            self.interrupt.interrupt();
            std::thread::sleep(INTERRUPT_EVERY);
        }
        if thread.join().is_err() {
            tracing::error!("the store's reading thread panicked");
        }
    }
}

fn serve(connection: &Connection, queue: &Receiver<Query>, closing: &AtomicBool) {
    for query in queue {
        if !closing.load(Ordering::SeqCst) {
            query(connection);
        }
    }
}
