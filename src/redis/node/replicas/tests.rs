//! Which questions are asked, and what becomes of those that are not.

use test_support::{Server, tokio};

use super::*;
use crate::base::runtime::Runtime;
use crate::kind::LockKind;
use crate::redis::connection::{Connection, Task};
use crate::redis::settings::Settings;
use crate::script;

/// A connection to a server without replicas.
struct Scene {
    link: Arc<Link>,
    replicas: Arc<Replicas>,
    _task: Task,
    _server: Server,
}

impl Scene {
    async fn new() -> Self {
        let server = Server::start();
        let url = format!("redis://127.0.0.1:{}", server.port);
        let settings = Settings::from_url(&url, None, Duration::from_millis(1_500), true);
        let settings = settings.expect("valid");
        let opened = Connection::open(&settings).await;
        let (connection, task) = opened.expect("it responds");
        let address = Arc::clone(&settings.address);
        Self {
            link: Arc::new(Link::new(connection, false, None, address, Arc::default())),
            replicas: Arc::default(),
            _task: task,
            _server: server,
        }
    }

    /// Adds a question with so much time left.
    fn ask(&self, left: Duration) -> oneshot::Receiver<u32> {
        let (answer, answered) = oneshot::channel();
        let mut pending = self.replicas.pending.lock();
        pending.is_served = true;
        pending.questions.push(AckRequest {
            link: Arc::clone(&self.link),
            touch: touch(),
            until: Instant::now() + left,
            answer,
        });
        answered
    }
}

fn touch() -> Call<bool> {
    let (key, field) = ("stock".into(), "owner:1".into());
    script::touch(LockKind::Plain, [(&key, &field)].into_iter())
}

const LONG: Duration = Duration::from_secs(20);

#[tokio::test]
async fn nothing_is_asked_for_a_caller_that_has_gone_or_has_no_time_left() {
    let scene = Scene::new().await;
    let (gone, _late) = (scene.ask(LONG), scene.ask(Duration::ZERO));
    drop(gone);
    assert!(scene.replicas.next().is_none());
    assert!(!scene.replicas.pending.lock().is_served);
    let (_there, gone, _late) = (scene.ask(LONG), scene.ask(LONG), scene.ask(Duration::ZERO));
    drop(gone);
    let asked = scene.replicas.next().map(|questions| questions.len());
    assert_eq!(asked, Some(1));
}

#[tokio::test]
async fn without_a_task_that_asks_no_replica_has_a_lock() {
    let scene = Scene::new().await;
    let context = ConnectionContext::new(&Runtime::current().expect("in a runtime"));
    context.end();
    for _ in 0..2 {
        let question = (Arc::clone(&scene.link), touch(), Instant::now() + LONG);
        let start = Instant::now();
        assert_eq!(scene.replicas.acknowledged(&context, 1, question).await, 0);
        assert!(start.elapsed() < LONG, "it has not waited for an answer");
    }
    assert!(!scene.replicas.pending.lock().is_served);
}
