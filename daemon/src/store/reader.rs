//! The thread that reads the database for whoever asks for more than memory holds: checks of the
//! whole file, old events, the audit trail. It has a connection of its own, so that no read,
//! however long, is before a command; and reads come one after the other, so that they take one
//! core at most.

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

/// Reads that may wait.
const QUEUE: usize = 32;
/// How often a read is told to end while the store closes.
const INTERRUPT_EVERY: Duration = Duration::from_millis(1);

type Query = Box<dyn FnOnce(&Connection) + Send>;

/// The reading thread.
pub(super) struct Reader {
    /// Gone once closed. A channel keeps what was sent although its receiver is gone: whoever sent
    /// it last would wait for as long as the sender lives.
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
    /// Opens a second connection to a database that is open already.
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

    /// Reads when those that came before have been served.
    ///
    /// # Errors
    /// When too many wait, or the daemon is stopping. The inner error is SQLite's.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> Result<Result<T, rusqlite::Error>, ErrorDetail> {
        let (reply, answer) = oneshot::channel();
        let query: Query = Box::new(move |connection| {
            // Who has gone away in the meantime costs the others no time.
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

    /// Breaks off what runs, drops what waits, and closes the connection.
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
            // Again and again: an interrupt counts only for what runs already.
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
