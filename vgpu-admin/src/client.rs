//! HTTP over the daemon's Unix socket.

use std::error::Error as _;
use std::fmt::Display;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http_body_util::channel::Channel;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use vgpu_api::{API_VERSION, ErrorBody, check_socket_path};

use crate::error::Error;

/// Largest answer that is read, in bytes: a status of thousands of VMs is a few MiB.
const MAX_ANSWER: usize = 64 << 20;

/// [`Client::timeout`], if nobody asks for less. Scans run a probe with a separate deadline.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Time without an answer after which the client asks whether vgpud is alive.
const SILENCE: Duration = Duration::from_secs(30);

/// Longest wait for a vgpud that restarts.
const RESTART: Duration = Duration::from_secs(300);

/// Time between two tries while vgpud restarts.
const AGAIN: Duration = Duration::from_millis(500);

/// Size of the pieces in which files are sent, in bytes.
const PIECE: u64 = 64 << 10;

/// The address of a daemon.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    socket: PathBuf,
    /// Longest wait for an answer that the daemon does not delay on purpose.
    timeout: Duration,
}

impl Client {
    /// Returns a client of the daemon at `socket`. Does not connect.
    pub(crate) fn new(socket: PathBuf) -> Client {
        Client {
            socket,
            timeout: TIMEOUT,
        }
    }

    /// Returns a client of the same daemon that waits for an answer no longer than `time`.
    pub(crate) fn with_timeout(&self, time: Duration) -> Client {
        Client {
            socket: self.socket.clone(),
            timeout: self.timeout.min(time),
        }
    }

    /// `GET /v1/<path>`.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.call(Method::GET, path, None::<&()>).await
    }

    /// As [`Client::get`], but waits while vgpud restarts, and says so on standard error.
    ///
    /// # Errors
    /// As [`Client::get`]; if vgpud does not answer again within [`RESTART`], the last error.
    pub(crate) async fn get_through_restarts<T: DeserializeOwned>(
        &self,
        path: &str,
    ) -> Result<T, Error> {
        let mut away: Option<Instant> = None;
        loop {
            match self.get(path).await {
                Err(error) if error.is_restart() => match away {
                    None => {
                        eprintln!("vgpu-admin: {error} Waiting until vgpud answers again …");
                        away = Some(Instant::now());
                    }
                    Some(since) if since.elapsed() > RESTART => return Err(error),
                    Some(_) => {}
                },
                answer => {
                    if away.is_some() && answer.is_ok() {
                        eprintln!("vgpu-admin: vgpud answers again.");
                    }
                    return answer;
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// `POST /v1/<path>` with a JSON body.
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Error> {
        self.call(Method::POST, path, Some(body)).await
    }

    /// Writes the answer of `GET /v1/<path>` to `out` as it arrives, without a size limit.
    pub(crate) async fn download(&self, path: &str, out: &mut impl Write) -> Result<(), Error> {
        let opened = self.open(Method::GET, path, None::<&()>);
        let mut response = self.while_alive(opened).await?;
        let status = response.status();
        if !status.is_success() {
            let body = Limited::new(response.into_body(), MAX_ANSWER).collect();
            let bytes = self.in_time(async { body.await.map_err(protocol) }).await?;
            return parse::<serde::de::IgnoredAny>(status, &bytes.to_bytes()).map(drop);
        }
        loop {
            let frame = response.frame();
            let next = self.in_time(async { frame.await.transpose().map_err(|_| Error::CutOff) });
            let Some(frame) = next.await? else {
                return Ok(());
            };
            if let Ok(data) = frame.into_data() {
                out.write_all(&data)?;
            }
        }
    }

    /// `POST /v1/<path>` with a file of any size as the body.
    pub(crate) async fn upload<T: DeserializeOwned>(
        &self,
        path: &str,
        file: std::fs::File,
    ) -> Result<T, Error> {
        let length = file.metadata()?.len();
        let (mut sender, body) = Channel::<Bytes, std::io::Error>::new(1);
        let sent = tokio::spawn(async move {
            let mut file = file;
            loop {
                let mut piece = Vec::new();
                match (&mut file).take(PIECE).read_to_end(&mut piece) {
                    Ok(0) => return,
                    Ok(_) => {}
                    // The daemon notices that the body is incomplete.
                    Err(error) => return sender.abort(error),
                }
                if sender.send_data(piece.into()).await.is_err() {
                    return;
                }
            }
        });
        let answer = self.while_alive(async {
            // The length lets vgpud check before the upload whether the disk has room.
            let head = head(Method::POST, path).header("content-length", length);
            let response = self.send(head.body(body)).await?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_ANSWER).collect();
            let bytes = body.await.map_err(protocol)?.to_bytes();
            parse(status, &bytes)
        });
        let answer = answer.await;
        sent.abort();
        answer
    }

    /// Sends any request of the API. Each request has its own connection, because commands are few.
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, Error> {
        self.in_time(async {
            let response = self.open(method, path, body).await?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_ANSWER).collect();
            let bytes = body.await.map_err(protocol)?.to_bytes();
            parse(status, &bytes)
        })
        .await
    }

    /// Sends a request and returns the head of the answer.
    async fn open(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<Response<Incoming>, Error> {
        self.send(Ok(build(method, path, body)?)).await
    }

    async fn send<B>(
        &self,
        request: Result<Request<B>, hyper::http::Error>,
    ) -> Result<Response<Incoming>, Error>
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
            + Send
            + 'static,
    {
        check_socket_path(&self.socket).map_err(|why| Error::Usage(format!("--socket: {why}.")))?;
        let stream = UnixStream::connect(&self.socket)
            .await
            .map_err(|cause| self.unreachable(cause))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(Patient(stream)))
                .await
                .map_err(protocol)?;
        // The task ends with the connection; an error appears in the request.
        tokio::spawn(connection);
        sender
            .send_request(request.map_err(protocol)?)
            .await
            .map_err(unanswered)
    }

    /// Waits for `step` while vgpud is alive, because work on a large database takes long on a slow
    /// disk.
    async fn while_alive<T>(
        &self,
        step: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let mut step = std::pin::pin!(step);
        loop {
            if let Ok(answer) = tokio::time::timeout(SILENCE, &mut step).await {
                return answer;
            }
            self.alive(self.timeout).await?;
        }
    }

    async fn in_time<T>(&self, step: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        self.within(self.timeout, step).await
    }

    async fn within<T>(
        &self,
        time: Duration,
        step: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        match tokio::time::timeout(time, step).await {
            Ok(answer) => answer,
            Err(_) => Err(self.unreachable(std::io::Error::new(
                std::io::ErrorKind::TimedOut,
                format!("no answer within {} s", time.as_secs_f64()),
            ))),
        }
    }

    /// Asks whether vgpud is alive. Any answer within `time` counts.
    ///
    /// # Errors
    /// [`Error::Unreachable`], if no answer arrives.
    pub(crate) async fn alive(&self, time: Duration) -> Result<(), Error> {
        let request = Request::get("/healthz").header("host", "vgpud");
        let answer = self.send(request.body(Full::<Bytes>::default()));
        match self.within(time, answer).await {
            Err(gone @ Error::Unreachable { .. }) => Err(gone),
            _ => Ok(()),
        }
    }

    fn unreachable(&self, cause: std::io::Error) -> Error {
        Error::Unreachable {
            socket: self.socket.display().to_string(),
            cause,
        }
    }
}

/// A stream to a daemon that may answer and close before it has read the whole request. The answer
/// is still read: failed writes count as done, and only reads report the end of the connection.
struct Patient(UnixStream);

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.0).poll_write(cx, bytes);
        match written {
            Poll::Ready(Err(error)) if is_closed(&error) => Poll::Ready(Ok(bytes.len())),
            written => written,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

fn is_closed(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
    matches!(error.kind(), BrokenPipe | ConnectionReset)
}

/// The error of a request without any answer.
fn unanswered(error: hyper::Error) -> Error {
    let broken = error
        .source()
        .and_then(|cause| cause.downcast_ref::<std::io::Error>());
    if broken.is_some_and(is_closed)
        || error.is_incomplete_message()
        || error.is_canceled()
        || error.is_closed()
    {
        return Error::HungUp;
    }
    protocol(error)
}

fn protocol(error: impl Display) -> Error {
    Error::Protocol(error.to_string())
}

/// `path`, asking for a dry run if wanted.
pub(crate) fn tried(path: impl Into<String>, dry_run: bool) -> String {
    let path = path.into();
    match dry_run {
        true => path + "?dry_run=true",
        false => path,
    }
}

fn head(method: Method, path: &str) -> hyper::http::request::Builder {
    Request::builder()
        .method(method)
        .uri(format!("/{API_VERSION}/{path}"))
        .header("host", "vgpud")
        .header(
            "user-agent",
            concat!("vgpu-admin/", env!("CARGO_PKG_VERSION")),
        )
}

fn build(
    method: Method,
    path: &str,
    body: Option<&impl Serialize>,
) -> Result<Request<Full<Bytes>>, Error> {
    let mut builder = head(method, path);
    let bytes = match body {
        Some(body) => {
            builder = builder.header("content-type", "application/json");
            serde_json::to_vec(body).map_err(|e| Error::Protocol(e.to_string()))?
        }
        None => Vec::new(),
    };
    builder
        .body(Full::new(Bytes::from(bytes)))
        .map_err(|e| Error::Protocol(e.to_string()))
}

fn parse<T: DeserializeOwned>(status: StatusCode, bytes: &[u8]) -> Result<T, Error> {
    if status.is_success() {
        let bytes = if bytes.is_empty() { b"null" } else { bytes };
        return serde_json::from_slice(bytes).map_err(|e| Error::Protocol(e.to_string()));
    }
    match serde_json::from_slice::<ErrorBody>(bytes) {
        Ok(body) => Err(Error::Api(body.error)),
        Err(_) => Err(Error::Protocol(format!("HTTP status {status}"))),
    }
}

/// Percent-encodes one path segment (pool names and GPU addresses come from the command line).
pub(crate) fn segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_cannot_leave_their_place() {
        assert_eq!(segment("A-1_b.c~"), "A-1_b.c~");
        assert_eq!(segment("../a b?x"), "..%2Fa%20b%3Fx");
        assert_eq!(segment("é"), "%C3%A9");
    }

    #[tokio::test]
    async fn a_connection_closed_without_an_answer_is_a_sentence() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("admin.sock");
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                drop(stream);
            }
        });
        let client = Client::new(socket);
        for _ in 0..50 {
            let error = client.get::<()>("status").await.unwrap_err();
            assert!(
                error.to_string().contains("too many admin connections"),
                "{error}"
            );
            assert_eq!(error.exit_code(), 5);
        }
    }

    /// A fake daemon that answers the first request of a kind after an hour, and reports until then
    /// whether it is alive.
    fn slow_daemon(socket: &std::path::Path, lives: bool) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::UnixListener::bind(socket).unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut request = [0; 512];
                    let read = stream.read(&mut request).await.unwrap();
                    let asked = request[..read].starts_with(b"GET /healthz ");
                    if asked && !lives {
                        std::future::pending::<()>().await;
                    }
                    if !asked {
                        tokio::time::sleep(Duration::from_secs(3_600)).await;
                    }
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nnull";
                    stream.write_all(answer).await.unwrap();
                    let _ = stream.read(&mut request).await;
                });
            }
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_database_is_waited_for_while_the_daemon_lives() {
        let dir = tempfile::tempdir().unwrap();
        let [lives, hangs] = [true, false].map(|lives| {
            let socket = dir.path().join(lives.to_string());
            slow_daemon(&socket, lives);
            Client::new(socket)
        });
        let mut copy = Vec::new();
        lives.download("backup", &mut copy).await.unwrap();
        assert_eq!(copy, b"null");
        let file = || tempfile::tempfile().unwrap();
        lives.upload::<()>("restore", file()).await.unwrap();
        let error = hangs.download("backup", &mut copy).await.unwrap_err();
        assert_eq!(error.exit_code(), 5, "{error}");
        let error = hangs.upload::<()>("restore", file()).await.unwrap_err();
        assert_eq!(error.exit_code(), 5, "{error}");
        // `doctor` gives up sooner.
        assert!(lives.alive(Duration::from_secs(5)).await.is_ok());
        let error = hangs.alive(Duration::from_secs(5)).await.unwrap_err();
        assert!(error.is_not_running() && error.to_string().contains("within 5 s"));
        // Requests without database work have a deadline.
        for (client, within) in [
            (lives.clone(), "within 60 s"),
            (lives.with_timeout(Duration::from_secs(5)), "within 5 s"),
            (lives.with_timeout(Duration::from_secs(90)), "within 60 s"),
        ] {
            let error = client.get::<()>("status").await.unwrap_err();
            assert!(error.to_string().contains(within), "{error}");
        }
    }

    #[tokio::test]
    async fn an_upload_that_is_refused_before_it_was_read_has_its_answer() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("admin.sock");
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 512]).await;
                let body = r#"{"error":{"code":"request_too_large","message":"Too large."}}"#;
                let length = body.len();
                let answer =
                    format!("HTTP/1.1 413 Large\r\ncontent-length: {length}\r\n\r\n{body}");
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 << 20).unwrap();
        let client = Client::new(socket);
        for _ in 0..20 {
            let sent = client.upload::<()>("restore", file.try_clone().unwrap());
            let error = sent.await.unwrap_err();
            assert_eq!(error.to_string(), "Too large.", "{error:?}");
        }
    }

    #[test]
    fn errors_of_the_daemon_are_kept_whole() {
        let body = br#"{"error":{"code":"pool_not_found","message":"No pool B.","hint":"Try A."}}"#;
        match parse::<()>(StatusCode::NOT_FOUND, body) {
            Err(e @ Error::Api(_)) => {
                assert_eq!(e.exit_code(), 3);
                assert_eq!(e.to_string(), "No pool B. Try A.");
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(
            parse::<()>(StatusCode::BAD_GATEWAY, b"<html>"),
            Err(Error::Protocol(_))
        ));
        assert!(parse::<()>(StatusCode::OK, b"").is_ok());
    }
}
