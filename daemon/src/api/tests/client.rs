//! A minimal HTTP client: one request per connection.

use std::io;
use std::path::Path;

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) content_type: String,
    pub(super) text: String,
}

impl Answer {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }
}

pub(super) async fn unix(
    socket: &Path,
    method: &str,
    path: &str,
    body: Option<String>,
) -> io::Result<Answer> {
    let stream = tokio::net::UnixStream::connect(socket).await?;
    send(stream, method, path, &[], body).await
}

pub(super) async fn tcp(
    address: std::net::SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<String>,
) -> io::Result<Answer> {
    let stream = tokio::net::TcpStream::connect(address).await?;
    send(stream, method, path, headers, body).await
}

pub(super) async fn send<S>(
    stream: S,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<String>,
) -> io::Result<Answer>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    let driver = tokio::spawn(connection);
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "vgpu");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = Full::new(Bytes::from(body.unwrap_or_default()));
    let request = request.body(body).map_err(io::Error::other)?;
    let response = sender
        .send_request(request)
        .await
        .map_err(io::Error::other)?;
    let status = response.status().as_u16();
    let content_type = response
        .headers()
        .get("content-type")
        .and_then(|v| v.to_str().ok());
    let content_type = content_type.unwrap_or_default().to_owned();
    let bytes = response
        .into_body()
        .collect()
        .await
        .map_err(io::Error::other)?
        .to_bytes();
    driver.abort();
    Ok(Answer {
        status,
        content_type,
        text: String::from_utf8_lossy(&bytes).into_owned(),
    })
}
