//! A client behind a proxy, a second one beside it, and the means to look at both.

use std::time::Duration;

use redisson_lock::{LockClient, LockClientBuilder};

use crate::kinds::is_token;
use crate::{Control, Proxy, TestServer, eventually, is_script, ms};

pub struct ProxiedPair {
    pub server: TestServer,
    pub proxy: Proxy,
    /// On the server's side of the proxy.
    pub ours: LockClient,
    pub theirs: LockClient,
    pub control: Control,
}

impl ProxiedPair {
    pub async fn new() -> Self {
        Self::as_user("").await
    }

    /// Our client connects as `user:password@`: `u:p@` may not kill connections, `v:p@` may not call
    /// HDEL, `t:p@` may not read the server's clock, and `w:p@` may do neither of the first and the last.
    pub async fn as_user(user: &str) -> Self {
        Self::as_user_with(user, |builder| builder).await
    }

    /// Our client has more settings.
    pub async fn with(set: impl FnOnce(LockClientBuilder) -> LockClientBuilder) -> Self {
        Self::as_user_with("", set).await
    }

    pub async fn as_user_with(
        user: &str,
        set: impl FnOnce(LockClientBuilder) -> LockClientBuilder,
    ) -> Self {
        let server = TestServer::with(&["--enable-debug-command", "yes"]);
        let mut control = server.control();
        let users: [(&str, &[&str]); 4] = [
            ("u", &["-client|kill"]),
            ("v", &["-hdel"]),
            ("t", &["-time"]),
            ("w", &["-client|kill", "-time"]),
        ];
        for (name, missing) in users {
            let user = ["ACL", "SETUSER", name, "on", ">p", "~*", "&*", "+@all"];
            control.run(&[&user, missing].concat());
        }
        let proxy = Proxy::start(server.port).await;
        let url = format!("redis://{user}127.0.0.1:{}", proxy.port);
        let ours = set(LockClient::builder())
            .connect(&url)
            .await
            .expect("the server answers");
        let theirs = server.client().await;
        // Every script is known to the server from here on, so that a call is one command.
        let warm = theirs.lock("warm").lock().await.expect("free");
        assert!(theirs.lock("warm").force_unlock().await.expect("answered"));
        drop(warm);
        let first = theirs.lock("warm").lock().await.expect("free");
        let other = theirs.lock("warm").owned_by(&theirs.owner());
        let next = tokio::spawn(async move { other.lock().await?.unlock().await });
        eventually("it waits", ms(5000), || theirs.stats().waiting == 1).await;
        first.unlock().await.expect("held");
        let handed_over = next.await.expect("no panic");
        handed_over.expect("held");
        Self {
            server,
            proxy,
            ours,
            theirs,
            control,
        }
    }

    /// How often our client has called this script.
    pub fn calls(&self, source: &str) -> usize {
        self.proxy
            .script_calls()
            .iter()
            .filter(|words| is_script(words, source))
            .count()
    }

    /// Proves that nothing is left; the proxy runs on until what is in the background has ended.
    pub async fn finish(self) {
        let Self {
            server,
            proxy,
            ours,
            theirs,
            mut control,
        } = self;
        eventually("nothing under way", ms(5000), || {
            ours.stats().releasing == 0
        })
        .await;
        eventually("no key is left", ms(5000), || {
            let keys = control.run(&["KEYS", "*"]);
            keys.split(' ').all(|key| key.is_empty() || is_token(key))
        })
        .await;
        ours.close(Duration::ZERO).await;
        proxy.stop().await;
        server.finish([theirs]).await;
    }
}
