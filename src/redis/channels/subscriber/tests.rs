//! What a waiter is told while its channel is not confirmed.

use test_support::{Server, eventually, tokio};

use super::*;
use crate::base::runtime::Runtime;
use crate::redis::channels::wait::Subscription;
use crate::redis::node::Node;
use crate::redis::node::endpoint::Endpoint;
use crate::redis::node::lane::ConnectionContext;
use crate::redis::settings::Expected;
use crate::redis::settings::address::Address;

const TIME_LIMIT: Duration = Duration::from_millis(1_500);

/// A subscriber of the server at this address.
fn actor(url: &str) -> Actor {
    let settings = Settings::from_url(url, None, TIME_LIMIT, true);
    let settings = Arc::new(settings.expect("valid"));
    let context = ConnectionContext::new(&Runtime::current().expect("in a runtime"));
    let map = Map::new(Arc::clone(&settings), Expected::Nothing, 1, 1, context);
    let endpoint = Endpoint::new(Address::default(), settings, None, None);
    map.fix(Node::new(endpoint, 1, 1));
    Actor {
        map,
        tried: AtomicUsize::new(0),
        subscriptions: Arc::default(),
        slow: AtomicBool::new(false),
    }
}

/// The reason that a new waiter is given.
fn problem(actor: &Actor) -> Option<String> {
    let waiter = actor.subscriptions.subscribe(&"other".into());
    let cause = Subscription::from(waiter).problem()?;
    Some(cause.text.clone())
}

#[tokio::test]
async fn a_waiter_learns_why_there_is_no_connection() {
    // Nothing listens there.
    let actor = actor("redis://127.0.0.1:1");
    let mut backoff = Backoff::new(false);
    let is_refused = || problem(&actor).is_some_and(|text| text.contains("refused"));
    tokio::select! {
        _ = actor.reconnect(&mut backoff) => unreachable!("it goes on"),
        () = eventually("the reason", TIME_LIMIT * 4, is_refused) => {}
    }
}

#[tokio::test]
async fn an_answer_is_the_end_of_the_reason() {
    let server = Server::start();
    let actor = actor(&server.url());
    let cause = Cause::at(&actor.map.settings.address, "no connection");
    actor.subscriptions.set_problem(Some(cause));
    assert_eq!(problem(&actor).as_deref(), Some("no connection"));
    let opened = actor.open(&actor.map.settings).await;
    let session = opened.expect("it responds");
    let worker = ChannelWorker {
        actor: &actor,
        server: &session.server,
        connection: &session.connection,
        served: AtomicBool::new(false),
        asked_at: Mutex::new(None),
        asked: Notify::new(),
    };
    assert!(worker.heartbeat().await.is_ok());
    assert_eq!(problem(&actor), None);
}
