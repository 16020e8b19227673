//! Listeners and connections of the admin API, with their limits.

use std::io;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use vgpu_api::ErrorCode;

use super::auth::{Caller, Gatekeeper, Transport};
use super::failure::Failure;
use super::places::{Holder, Place, Places};
use super::routes;
use super::service::Admin;
use super::{auth, peer, socket};
use crate::config::{self, Config};
use crate::system::guarded::{Guarded, Listener, Stream};

/// Time within which a connection must send the head of its first request. Over TCP, the head must
/// carry a valid token.
const FIRST_HEAD: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 5 });
/// Lifetime of a connection without a place, which only gets the answer that there are too many.
const TELL_DEADLINE: Duration = Duration::from_secs(1);
/// Largest number of such connections at a time. Further connections are closed without an answer.
const TELLING: usize = 16;
/// Time within which the head of each later request must arrive, including idle time.
const HEAD_DEADLINE: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 30 });
/// Largest request head, in bytes.
const HEAD_LEN: usize = 16 * 1024;
/// Time after the shutdown signal for answers in progress.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// Pause after a failed accept, for instance because too many files are open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Number of callers above which the rate limiter forgets callers whose burst is full again.
const CALLERS: usize = 1_024;
/// Routes without a deadline: the stream of events, and backup and restore, whose duration depends
/// on the size of the database and the disk. Backup and restore disconnect a caller that stalls.
const UNTIMED: [&str; 3] = ["/v1/events/stream", "/v1/backup", "/v1/restore"];

/// The reason for which the admin API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The Unix socket cannot be bound.
    #[error("Cannot serve the admin API on {}: {message}", socket.display())]
    Unix {
        /// Path of the socket.
        socket: PathBuf,
        /// The problem, as a sentence.
        message: String,
    },
    /// The TCP address cannot be bound.
    #[error("Cannot serve the admin API on {address}: {source}. Is the address free?")]
    Tcp {
        /// The address.
        address: std::net::SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// The token file is wrong: a sentence with file and problem.
    #[error("{0}")]
    Tokens(String),
}

/// The listeners of the admin API, bound and ready to serve.
#[derive(Debug)]
pub struct AdminServer {
    gate: Arc<Gate>,
    unix: Listener,
    socket: PathBuf,
    tcp: Option<TcpListener>,
}

/// Access control and rate limits of all connections.
#[derive(Debug)]
struct Gate {
    admin: Arc<Admin>,
    rules: RwLock<Arc<Rules>>,
    places: Arc<Places>,
    telling: Arc<Semaphore>,
}

/// A connection.
#[derive(Debug)]
struct Visit {
    /// `Ok`: the place of the connection. `Err`: the connection has no place; the sentence that
    /// tells this to the caller, and a permit ([`TELLING`]) for sending the sentence.
    place: Mutex<Result<Place, (String, OwnedSemaphorePermit)>>,
    /// Whether an identified caller has sent a request head: over TCP, a caller with a valid token.
    known: AtomicBool,
}

impl Visit {
    /// Returns at the deadline if no identified caller has sent a request head by then, otherwise
    /// never.
    async fn unknown(&self) {
        let told = self.place().is_err();
        tokio::time::sleep(if told { TELL_DEADLINE } else { FIRST_HEAD }).await;
        if self.known.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }

    /// Fails with the sentence for the caller if the connection has no place.
    fn has_place(&self) -> Result<(), String> {
        self.place()
            .as_ref()
            .map(drop)
            .map_err(|(text, _)| text.clone())
    }

    /// Moves the place of the connection to a token.
    fn belongs_to(&self, token: &Caller) -> Result<(), String> {
        match &mut *self.place() {
            Ok(place) => place.pass_to(Holder::Token(token.name.clone())),
            Err((text, _)) => Err(text.clone()),
        }
    }

    fn place(&self) -> std::sync::MutexGuard<'_, Result<Place, (String, OwnedSemaphorePermit)>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Rules {
    keeper: Gatekeeper,
    rate: DefaultKeyedRateLimiter<String>,
    timeout: Duration,
}

impl Rules {
    fn new(admin: &config::Admin) -> Result<Self, String> {
        let cells = |n: u32| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
        let quota =
            Quota::per_second(cells(admin.requests_per_s)).allow_burst(cells(admin.requests_burst));
        Ok(Self {
            keeper: Gatekeeper::new(admin)?,
            rate: RateLimiter::keyed(quota),
            timeout: Duration::from_millis(admin.timeout_ms),
        })
    }
}

impl AdminServer {
    /// Binds the sockets. From then on callers can connect, and wait until vgpud accepts them.
    ///
    /// # Errors
    /// If a socket cannot be bound, or the token file is wrong.
    pub async fn bind(admin: Arc<Admin>) -> Result<Self, ServeError> {
        let config: Arc<Config> = admin.config().borrow().clone();
        let rules = Rules::new(&config.admin).map_err(ServeError::Tokens)?;
        let socket = config.admin_socket();
        let unix =
            socket::bind(&socket, &rules.keeper.groups()).map_err(|message| ServeError::Unix {
                socket: socket.clone(),
                message,
            })?;
        let tcp = match config.admin.tcp_listen {
            Some(address) => Some(
                TcpListener::bind(address)
                    .await
                    .map_err(|source| ServeError::Tcp { address, source })?,
            ),
            None => None,
        };
        let gate = Gate {
            admin,
            rules: RwLock::new(Arc::new(rules)),
            places: Places::new(config.admin.max_connections),
            telling: Arc::new(Semaphore::new(TELLING)),
        };
        Ok(Self {
            gate: Arc::new(gate),
            unix,
            socket,
            tcp,
        })
    }

    /// Accepts attached descriptors, as an older kernel does.
    #[cfg(test)]
    pub(super) fn allow_rights(&self) {
        self.unix.allow_rights();
    }

    /// Returns the TCP address in use, if any, with the actual port even if port 0 was configured.
    #[must_use]
    pub fn tcp_address(&self) -> Option<std::net::SocketAddr> {
        self.tcp
            .as_ref()
            .and_then(|listener| listener.local_addr().ok())
    }

    /// Serves until `shutdown` becomes true or its sender is dropped. Then removes the socket and
    /// waits up to 5 s for answers in progress.
    pub async fn serve(self, mut shutdown: watch::Receiver<bool>) {
        let router = self
            .gate
            .clone()
            .router(&self.gate.admin.config().borrow().clone());
        let mut reloads = self.gate.admin.config();
        let stop = watch::Sender::new(false);
        let mut told = false;
        loop {
            tokio::select! {
                () = stopped(&mut shutdown) => break,
                changed = reloads.changed() => {
                    if changed.is_ok() {
                        let config = reloads.borrow_and_update().clone();
                        self.gate.reload(&config.admin);
                    }
                }
                accepted = accept_unix(&self.unix, &mut told) => match accepted {
                    Ok(socket) => self.gate.clone().unix(socket, &router, &stop),
                    Err(error) => pause(&error).await,
                },
                accepted = accept_tcp(self.tcp.as_ref()) => match accepted {
                    Ok((stream, address)) => {
                        let holder = Holder::address(address.ip());
                        self.gate.clone().open(stream, Transport::Tcp, holder, &router, &stop);
                    }
                    Err(error) => pause(&error).await,
                },
            }
        }
        drop(self.unix);
        let _ = std::fs::remove_file(&self.socket);
        self.gate.admin.close();
        stop.send_replace(true);
        let _ = tokio::time::timeout(SHUTDOWN_GRACE, stop.closed()).await;
    }
}

/// Returns when `stop` becomes true or its sender is dropped.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Accepts the next connection. Waits while too many ended connections are being closed, and logs
/// this once (`told`).
async fn accept_unix(listener: &Listener, told: &mut bool) -> io::Result<Guarded> {
    if listener.closer().is_full() && !std::mem::replace(told, true) {
        tracing::warn!(
            "the admin API accepts nobody until connections that ended are closed: what is attached to \
             them, or waits in them, takes long to close"
        );
    }
    listener.closer().room().await;
    *told = false;
    listener.accept().await
}

async fn accept_tcp(
    listener: Option<&TcpListener>,
) -> io::Result<(tokio::net::TcpStream, std::net::SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

async fn pause(error: &io::Error) {
    tracing::warn!(%error, "the admin API cannot accept a connection");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

impl Gate {
    fn rules(&self) -> Arc<Rules> {
        self.rules
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn reload(&self, admin: &config::Admin) {
        match Rules::new(admin) {
            Ok(rules) => {
                *self.rules.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
            }
            Err(problem) => tracing::error!(problem, "the old tokens and limits stay in force"),
        }
    }

    /// Returns the routes, behind the checks that apply to every request.
    fn router(self: Arc<Self>, config: &Config) -> Router {
        let body = usize::try_from(config.admin.max_body_bytes).unwrap_or(usize::MAX);
        routes::router(self.admin.clone())
            .layer(axum::middleware::from_fn_with_state(self, admit))
            .layer(DefaultBodyLimit::max(body))
    }

    fn unix(self: Arc<Self>, socket: Guarded, router: &Router, stop: &watch::Sender<bool>) {
        let known = peer::identity(&socket).and_then(|peer| Ok((peer, Stream::new(socket)?)));
        match known {
            Ok((peer, stream)) => {
                let rules = self.rules();
                let holder = rules.keeper.holder(&peer);
                let transport = Transport::Unix(rules.keeper.unix(&peer));
                self.open(stream, transport, holder, router, stop);
            }
            Err(error) => tracing::warn!(%error, "a caller of the admin API cannot be identified"),
        }
    }

    /// Serves one connection in a task of its own.
    fn open<S>(
        self: Arc<Self>,
        stream: S,
        transport: Transport,
        holder: Holder,
        router: &Router,
        stop: &watch::Sender<bool>,
    ) where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let place = match self.places.take(holder) {
            Ok(place) => Ok(place),
            Err(text) => {
                tracing::debug!("{text}");
                let Ok(permit) = self.telling.clone().try_acquire_owned() else {
                    return;
                };
                Err((text, permit))
            }
        };
        let visit = Arc::new(Visit {
            place: Mutex::new(place),
            known: AtomicBool::new(false),
        });
        let service = router
            .clone()
            .layer(axum::Extension(visit.clone()))
            .layer(axum::Extension(transport));
        let mut stop = stop.subscribe();
        tokio::spawn(async move {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_DEADLINE)
                .max_buf_size(HEAD_LEN)
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
            let mut connection = std::pin::pin!(connection);
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = visit.unknown() => Ok(()),
                () = stopped(&mut stop) => {
                    connection.as_mut().graceful_shutdown();
                    let finish = tokio::time::timeout(SHUTDOWN_GRACE, connection);
                    finish.await.unwrap_or(Ok(()))
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection of the admin API ended");
            }
        });
    }
}

/// Checks every request: place of the connection, identity of the caller, rate, deadline.
async fn admit(State(gate): State<Arc<Gate>>, request: Request, next: Next) -> Response {
    let rules = gate.rules();
    let Some(visit) = request.extensions().get::<Arc<Visit>>().cloned() else {
        return nobody().into_response();
    };
    if let Err(text) = visit.has_place() {
        return last(too_many(&text));
    }
    let caller = match identify(&rules.keeper, &request) {
        Ok(caller) => caller,
        Err(failure) => {
            // All requests without a valid token share one rate limit.
            if rules.rate.check_key(&"unknown".to_owned()).is_err() {
                return last(too_often("unknown"));
            }
            return last(failure);
        }
    };
    if matches!(
        request.extensions().get::<Transport>(),
        Some(Transport::Tcp)
    ) {
        if caller.access == auth::Access::None {
            return last(answer(&rules, caller, request, next).await);
        }
        if let Err(text) = visit.belongs_to(&caller) {
            return last(too_many(&text));
        }
    }
    visit.known.store(true, Ordering::SeqCst);
    answer(&rules, caller, request, next).await
}

/// Answers an identified caller, within the caller's rate and the deadline.
async fn answer(rules: &Rules, caller: Caller, mut request: Request, next: Next) -> Response {
    if rules.rate.len() > CALLERS {
        rules.rate.retain_recent();
    }
    if rules.rate.check_key(&caller.name).is_err() {
        return too_often(&caller.name).into_response();
    }
    let untimed = UNTIMED.contains(&request.uri().path());
    request.extensions_mut().insert(caller);
    if untimed {
        return next.run(request).await;
    }
    match tokio::time::timeout(rules.timeout, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Failure::new(
            ErrorCode::Timeout,
            format!("No answer within {} ms.", rules.timeout.as_millis()),
            "A command may still be carried out; repeat it (with the same idempotency key) to see.",
        )
        .into_response(),
    }
}

/// Returns an answer that closes the connection, because a connection without a place or a valid
/// token must not stay open.
fn last(answer: impl IntoResponse) -> Response {
    let mut response = answer.into_response();
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    response
}

/// Whether the route needs no rights.
fn is_open(request: &Request) -> bool {
    request.uri().path() == "/healthz"
}

fn identify(keeper: &Gatekeeper, request: &Request) -> Result<Caller, Failure> {
    match request.extensions().get::<Transport>() {
        Some(Transport::Unix(caller)) => Ok(caller.clone()),
        Some(Transport::Tcp) => match keeper.token(request.headers()) {
            Err(_) if is_open(request) => Ok(Caller {
                name: "unknown".into(),
                pid: None,
                access: auth::Access::None,
            }),
            known => known,
        },
        None => Err(nobody()),
    }
}

fn nobody() -> Failure {
    Failure::new(ErrorCode::Internal, "It is not known who asks.", "")
}

fn too_many(text: &str) -> Failure {
    Failure::new(
        ErrorCode::RateLimited,
        format!("{text}."),
        "Close some that follow events or keep a connection open, or raise admin.max_connections.",
    )
}

fn too_often(caller: &str) -> Failure {
    Failure::new(
        ErrorCode::RateLimited,
        format!("Too many requests of {caller} (admin.requests_per_s)."),
        "Wait a second; to follow events use /v1/events/stream.",
    )
}
