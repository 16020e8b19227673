//! Tests of the whole API over real sockets, with a mediation that only records its calls.

mod client;
mod copies;
mod deciding;
mod fake;
mod following;
mod listeners;
mod metrics;
mod running;
mod sockets;
mod trail;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::api::{Admin, AdminServer};
use crate::config::Config;
use crate::store::{Store, StoreOptions};
use client::Answer;
use fake::FakeMediation;

/// A configuration line that makes the admin socket accept attached descriptors, as an older kernel
/// does.
const OLD_KERNEL: &str = "# old kernel\n";

/// A vgpud without guests.
struct Host {
    dir: tempfile::TempDir,
    admin: Arc<Admin>,
    mediation: Arc<FakeMediation>,
    socket: PathBuf,
    tcp: Option<std::net::SocketAddr>,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl Host {
    async fn start() -> Self {
        Self::start_with("").await
    }

    /// Starts a host with a TCP listener and two tokens: one may read, one may write.
    async fn start_with_tokens(reader: &str, writer: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tokens");
        let lines = format!("panel read {reader}\nrobot write {writer}\n");
        std::fs::write(&file, lines).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&file, mode).unwrap();
        Self::start_with(&format!(
            "[admin]\ntcp_listen = \"127.0.0.1:0\"\ntcp_token_file = \"{}\"\n",
            file.display()
        ))
        .await
    }

    /// Starts a host with further lines of configuration; `{dir}` stands for the host's directory.
    async fn start_with(lines: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let here = dir.path().display().to_string();
        let text = format!(
            "[daemon]\nstate_dir = \"{here}/state\"\nruntime_dir = \"{here}/run\"\n{}",
            lines.replace("{dir}", &here)
        );
        let file = dir.path().join("vgpud.toml");
        std::fs::write(&file, text).unwrap();
        let config = Arc::new(Config::load(&file).unwrap());
        let store = Store::open(
            &config.database(),
            StoreOptions::of(&config, &Default::default()),
        )
        .unwrap();
        let mediation = Arc::new(FakeMediation::default());
        let admin = Admin::new(
            Arc::new(store),
            mediation.clone(),
            config.clone(),
            Some(file),
        );
        admin.start().await.unwrap();
        let server = AdminServer::bind(admin.clone()).await.unwrap();
        if lines.contains(OLD_KERNEL) {
            server.allow_rights();
        }
        let tcp = server.tcp_address();
        let stop = watch::Sender::new(false);
        let serving = tokio::spawn(server.serve(stop.subscribe()));
        let socket = config.admin_socket();
        Self {
            dir,
            admin,
            mediation,
            socket,
            tcp,
            stop,
            serving,
        }
    }

    async fn get(&self, path: &str) -> Answer {
        client::unix(&self.socket, "GET", path, None).await.unwrap()
    }

    async fn send(&self, method: &str, path: &str, body: Value) -> Answer {
        client::unix(&self.socket, method, path, Some(body.to_string()))
            .await
            .unwrap()
    }

    /// Sends a request and fails unless the response is a success.
    async fn done(&self, method: &str, path: &str, body: Value) -> Value {
        let answer = self.send(method, path, body).await;
        assert_eq!(answer.status, 200, "{method} {path}: {}", answer.text);
        answer.json()
    }

    /// Sends a request and fails unless it is refused with this code. Returns the sentences.
    async fn refused(&self, method: &str, path: &str, body: Value, code: &str) -> String {
        let answer = self.send(method, path, body).await;
        let error = &answer.json()["error"];
        assert_eq!(error["code"], code, "{method} {path}: {}", answer.text);
        assert!(answer.status >= 400, "{}", answer.status);
        format!("{} {}", error["message"], error["hint"])
    }

    /// The example of the project: GPU 0 for pool A with VMs 1 to 7, GPU 1 for pool B with VMs 8 to
    /// 20.
    async fn owners_example(&self) {
        for pool in ["A", "B"] {
            self.done("POST", "/v1/pools", json!({"name": pool})).await;
        }
        self.done("POST", "/v1/assignments", json!({"gpu": "0", "pool": "A"}))
            .await;
        self.done("POST", "/v1/assignments", json!({"gpu": "1", "pool": "B"}))
            .await;
        let a: Vec<u32> = (1..=7).collect();
        let b: Vec<u32> = (8..=20).collect();
        let body = json!({"vm_ids": a, "pool": "A", "priority": "high", "first_cid": 101});
        self.done("POST", "/v1/vms", body).await;
        self.done(
            "POST",
            "/v1/vms",
            json!({"vm_ids": b, "pool": "B", "priority": "low"}),
        )
        .await;
    }
}

/// Waits until `condition` holds; fails after 10 s.
async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within 10 s");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
