//! Export a client's statistics in the Prometheus text format, once a second.
//!
//! `cargo run --example metrics -- redis://127.0.0.1:6379`

use std::time::Duration;

use redisson_lock::{ClientStats, ConnectionFence, Error, LockClient};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let client = LockClient::connect(&url).await?;
    let exporter = tokio::spawn({
        let client = client.clone();
        async move {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                println!("{}", exposition(&client.stats()));
            }
        }
    });
    let guard = client.lock("stock:42").lock().await?;
    // A real program serves `exposition` over HTTP and does its work here.
    let _ = exporter.await;
    guard.unlock().await?;
    client.close(Duration::ZERO).await;
    Ok(())
}

fn exposition(stats: &ClientStats) -> String {
    let gauges = [
        ("held", stats.held),
        ("waiting", stats.waiting),
        ("subscriptions", stats.subscriptions),
        ("renewals", stats.renewals),
        ("releasing", stats.releasing),
        ("entries", stats.entries),
        (
            "connection_fence_active",
            usize::from(stats.connection_fence == ConnectionFence::Active),
        ),
    ];
    let counters = [
        ("acquired", stats.acquired_total),
        ("released", stats.released_total),
        ("lost", stats.lost_total),
        ("contended", stats.contended_total),
        ("renewed", stats.renewed_total),
        ("reconciled", stats.reconciled_total),
        ("given_up", stats.given_up_total),
        ("reconnects", stats.reconnects_total),
    ];
    let gauges = gauges.map(|(name, value)| {
        format!("# TYPE redisson_lock_{name} gauge\nredisson_lock_{name} {value}\n")
    });
    let counters = counters.map(|(name, value)| {
        format!("# TYPE redisson_lock_{name}_total counter\nredisson_lock_{name}_total {value}\n")
    });
    gauges.concat() + &counters.concat()
}
