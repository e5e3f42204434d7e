//! Which client a function with `#[locked]` takes.

use std::sync::Arc;

use redisson_lock::{Error, LockClient, locked};
use redisson_lock_test::FakeRedis;
use test_support::tokio;

use crate::ORDER;

/// Returns the client that holds the lock.
#[locked(name = "stock")]
async fn holder(fake: &FakeRedis) -> Result<String, Error> {
    let owner = fake.holder("stock").expect("it is held").owner;
    let (client, _) = owner.rsplit_once(':').expect("a client and a thread");
    Ok(client.to_owned())
}

#[tokio::test(start_paused = true)]
async fn without_a_client_it_is_the_default_one_of_the_task() {
    let fake = FakeRedis::start();
    let (one, other) = (fake.client().await, fake.client().await);
    let seen = one
        .as_default(async {
            let first = holder(&fake).await.unwrap();
            let nested = other.as_default(holder(&fake)).await.unwrap();
            let last = holder(&fake).await.unwrap();
            (first, nested, last)
        })
        .await;
    let (one, other) = (one.id().to_owned(), other.id().to_owned());
    assert_eq!(seen, (one.clone(), other, one));
}

#[tokio::test(start_paused = true)]
async fn no_client_is_an_error_that_says_what_to_do() {
    let fake = FakeRedis::start();
    let client = fake.client().await;
    let sentence = "this task has no default client; run the call inside `client.as_default(…)`, or name a client \
                    with `#[locked(client = …)]`";
    let error = holder(&fake).await.unwrap_err();
    assert!(matches!(error, Error::Misuse { .. }));
    assert_eq!(error.to_string(), sentence);

    let spawned = {
        let fake = fake.clone();
        async move { holder(&fake).await }
    };
    let joined = client
        .as_default(async { tokio::spawn(spawned).await })
        .await;
    let error = joined.unwrap().expect_err("a spawned task has none");
    assert_eq!(error.to_string(), sentence);
}

/// Everything that has a client, or leads to one.
struct State {
    locks: Arc<LockClient>,
}

impl State {
    fn locks(&self) -> LockClient {
        LockClient::clone(&self.locks)
    }
}

#[locked(name = "a", client = locks)]
async fn by_reference(locks: &LockClient) -> Result<(), Error> {
    Ok(())
}

#[locked(name = "a", client = locks)]
async fn by_value(locks: LockClient) -> Result<String, Error> {
    Ok(locks.id().to_owned())
}

#[locked(name = "a", client = state.locks)]
async fn by_arc(state: &State) -> Result<(), Error> {
    Ok(())
}

#[locked(name = "a", client = state.locks())]
async fn by_method(state: Arc<State>) -> Result<(), Error> {
    Ok(())
}

#[locked(name = "a", client = shared.lock().await.locks)]
async fn by_mutex(shared: &tokio::sync::Mutex<State>) -> Result<(), Error> {
    // The expression is done with before the body runs.
    assert!(shared.try_lock().is_ok());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_client_can_be_named_in_every_form() {
    let fake = FakeRedis::start();
    let locks = fake.client().await;
    by_reference(&locks).await.unwrap();
    assert_eq!(by_value(locks.clone()).await.unwrap(), locks.id());
    let state = Arc::new(State {
        locks: Arc::new(locks.clone()),
    });
    by_arc(&state).await.unwrap();
    by_method(state).await.unwrap();
    let shared = tokio::sync::Mutex::new(State {
        locks: Arc::new(locks),
    });
    by_mutex(&shared).await.unwrap();
}

/// The names that the expansion itself uses are not in the way.
#[locked(name = "{client}:{options}:{returned}", client = clients.0)]
async fn same_names(
    clients: &(LockClient, FakeRedis),
    client: u32,
    options: u32,
    returned: u64,
) -> Result<u64, Error> {
    assert!(clients.1.holder("1:2:7").is_some());
    let name = returned + u64::from(client) + u64::from(options);
    Ok(name)
}

#[tokio::test(start_paused = true)]
async fn arguments_may_have_any_name() {
    let fake = FakeRedis::start();
    let clients = (fake.client().await, fake);
    assert_eq!(same_names(&clients, 1, 2, ORDER.id).await.unwrap(), 10);
}
