//! Listeners and connections of the admin API, and their bounds.

use std::io;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use vgpu_proto::api::ErrorCode;

use super::auth::{Caller, Door, Gatekeeper};
use super::failure::Failure;
use super::routes;
use super::service::Admin;
use super::{auth, peer, socket};
use crate::config::{self, Config};

/// A connection must have sent a request's head within this time, also while it is idle.
const HEAD_DEADLINE: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 30 });
/// Largest request head.
const HEAD_LEN: usize = 16 * 1024;
/// After the shutdown signal, answers under way have this long.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// After a failed accept (too many open files), the next try.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Callers whose rate is remembered; beyond it, those at rest are forgotten.
const CALLERS: usize = 1_024;
/// The stream of events may take as long as it likes.
const UNTIMED: &str = "/v1/events/stream";

/// Why the admin API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The Unix socket.
    #[error("Cannot serve the admin API on {}: {message}", socket.display())]
    Unix {
        /// Its path.
        socket: PathBuf,
        /// Why.
        message: String,
    },
    /// The TCP address.
    #[error("Cannot serve the admin API on {address}: {source}. Is the address free?")]
    Tcp {
        /// The address.
        address: std::net::SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The token file.
    #[error("{0}")]
    Tokens(String),
}

/// The admin API's doors, bound and ready to serve.
#[derive(Debug)]
pub struct AdminServer {
    gate: Arc<Gate>,
    unix: UnixListener,
    socket: PathBuf,
    tcp: Option<TcpListener>,
}

/// Who may come in, and how often.
#[derive(Debug)]
struct Gate {
    admin: Arc<Admin>,
    rules: RwLock<Arc<Rules>>,
    connections: Arc<Semaphore>,
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
    /// Binds the sockets. From then on callers wait to be accepted.
    ///
    /// # Errors
    /// When a socket cannot be bound, or the token file is not right.
    pub async fn bind(admin: Arc<Admin>) -> Result<Self, ServeError> {
        let config: Arc<Config> = admin.config().borrow().clone();
        let rules = Rules::new(&config.admin).map_err(ServeError::Tokens)?;
        let socket = config.admin_socket();
        let unix = socket::bind(&socket, &rules.keeper.groups())
            .await
            .map_err(|message| ServeError::Unix {
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
        let connections = usize::try_from(config.admin.max_connections).unwrap_or(usize::MAX);
        let gate = Gate {
            admin,
            rules: RwLock::new(Arc::new(rules)),
            connections: Arc::new(Semaphore::new(connections.min(Semaphore::MAX_PERMITS))),
        };
        Ok(Self {
            gate: Arc::new(gate),
            unix,
            socket,
            tcp,
        })
    }

    /// The TCP address in use, where there is one (its port is known even if 0 was configured).
    #[must_use]
    pub fn tcp_address(&self) -> Option<std::net::SocketAddr> {
        self.tcp
            .as_ref()
            .and_then(|listener| listener.local_addr().ok())
    }

    /// Serves until `shutdown` becomes true (or its sender is gone); then answers under way are
    /// finished, and the socket is removed.
    pub async fn serve(self, mut shutdown: watch::Receiver<bool>) {
        let router = self
            .gate
            .clone()
            .router(&self.gate.admin.config().borrow().clone());
        let mut reloads = self.gate.admin.config();
        let stop = watch::Sender::new(false);
        loop {
            tokio::select! {
                () = stopped(&mut shutdown) => break,
                changed = reloads.changed() => {
                    if changed.is_ok() {
                        let config = reloads.borrow_and_update().clone();
                        self.gate.reload(&config.admin);
                    }
                }
                accepted = self.unix.accept() => match accepted {
                    Ok((stream, _)) => self.gate.clone().unix(stream, &router, &stop),
                    Err(error) => pause(&error).await,
                },
                accepted = accept_tcp(self.tcp.as_ref()) => match accepted {
                    Ok(stream) => self.gate.clone().open(stream, Door::Tcp, &router, &stop),
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

/// Ends when `stop` becomes true, or its sender is gone.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn accept_tcp(listener: Option<&TcpListener>) -> io::Result<tokio::net::TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(stream, _)| stream),
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

    /// The routes, behind the checks that every request passes.
    fn router(self: Arc<Self>, config: &Config) -> Router {
        let body = usize::try_from(config.admin.max_body_bytes).unwrap_or(usize::MAX);
        routes::router(self.admin.clone())
            .layer(axum::middleware::from_fn_with_state(self, admit))
            .layer(DefaultBodyLimit::max(body))
    }

    fn unix(self: Arc<Self>, stream: UnixStream, router: &Router, stop: &watch::Sender<bool>) {
        match peer::identity(&stream) {
            Ok(peer) => {
                let caller = self.rules().keeper.unix(&peer);
                self.open(stream, Door::Unix(caller), router, stop);
            }
            Err(error) => tracing::warn!(%error, "a caller of the admin API cannot be identified"),
        }
    }

    /// Serves one connection in a task of its own.
    fn open<S>(self: Arc<Self>, stream: S, door: Door, router: &Router, stop: &watch::Sender<bool>)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let Ok(permit) = self.connections.clone().try_acquire_owned() else {
            // The connection is closed unanswered: an answer would need a reader's patience.
            tracing::warn!("the admin API has admin.max_connections connections already");
            return;
        };
        let service = router.clone().layer(axum::Extension(door));
        let mut stop = stop.subscribe();
        tokio::spawn(async move {
            let _permit = permit;
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_DEADLINE)
                .max_buf_size(HEAD_LEN)
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
            let mut connection = std::pin::pin!(connection);
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
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

/// What every request passes: who is it, how often, for how long.
async fn admit(State(gate): State<Arc<Gate>>, mut request: Request, next: Next) -> Response {
    let rules = gate.rules();
    let caller = match identify(&rules.keeper, &request) {
        Ok(caller) => caller,
        Err(failure) => {
            // Guesses of tokens share one bucket.
            if rules.rate.check_key(&"unknown".to_owned()).is_err() {
                return too_often("unknown").into_response();
            }
            return failure.into_response();
        }
    };
    if rules.rate.len() > CALLERS {
        rules.rate.retain_recent();
    }
    if rules.rate.check_key(&caller.name).is_err() {
        return too_often(&caller.name).into_response();
    }
    let untimed = request.uri().path() == UNTIMED;
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

fn identify(keeper: &Gatekeeper, request: &Request) -> Result<Caller, Failure> {
    let open = request.uri().path() == "/healthz";
    match request.extensions().get::<Door>() {
        Some(Door::Unix(caller)) => Ok(caller.clone()),
        Some(Door::Tcp) if open => Ok(Caller {
            name: "unknown".into(),
            pid: None,
            access: auth::Access::None,
        }),
        Some(Door::Tcp) => keeper.token(request.headers()),
        None => Err(Failure::new(
            ErrorCode::Internal,
            "It is not known who asks.",
            "",
        )),
    }
}

fn too_often(caller: &str) -> Failure {
    Failure::new(
        ErrorCode::RateLimited,
        format!("Too many requests of {caller} (admin.requests_per_s)."),
        "Wait a second; to follow events use /v1/events/stream.",
    )
}
