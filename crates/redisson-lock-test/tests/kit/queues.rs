//! Fair locks, whose queue is on the server.

use std::sync::Arc;

use redisson_lock::LockKind;
use test_support::tokio;
use tokio::sync::Mutex;

use crate::{everywhere, free, ms};

#[test]
fn owners_of_two_clients_get_a_fair_lock_in_their_order() {
    everywhere(|fake| async move {
        let clients = [fake.client().await, fake.client().await];
        let lock = |client: usize| clients[client].lock_of(LockKind::Fair, "a");
        let held = lock(0).lock().await.unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for nth in 0..6 {
            let (lock, order) = (lock(nth % 2), Arc::clone(&order));
            waiting.push(tokio::spawn(async move {
                let guard = lock.lock().await.unwrap();
                order.lock().await.push(nth);
                guard.unlock().await.unwrap();
            }));
            // Its first attempt takes its place; then it subscribes.
            while clients[nth % 2].stats().subscriptions <= nth / 2 {
                tokio::time::sleep(ms(1)).await;
            }
        }
        held.unlock().await.unwrap();
        for waiter in waiting {
            waiter.await.unwrap();
        }
        assert_eq!(*order.lock().await, [0, 1, 2, 3, 4, 5]);
        free(&fake, "a").await;
    });
}

#[test]
fn another_client_has_a_fair_lock_and_wakes_the_first_in_the_queue() {
    everywhere(|fake| async move {
        let client = fake.client().await;
        let lock = client.lock_of(LockKind::Fair, "a");
        let other = fake.taken_by_another_of(LockKind::Fair, "a");
        assert!(lock.try_lock().await.unwrap().is_none());
        let waiting = tokio::spawn(async move { lock.lock().await });
        while client.stats().subscriptions == 0 {
            tokio::time::sleep(ms(1)).await;
        }
        assert!(other.release());
        let guard = waiting.await.unwrap().unwrap();
        guard.unlock().await.unwrap();
        free(&fake, "a").await;
    });
}
