//! Leader election: of all instances one works, and another takes over when it stops.
//!
//! Start it twice with `cargo run --example leader -- redis://127.0.0.1:6379`. End the first with Ctrl-C or SIGTERM, and
//! the second leads immediately. After a crash, such as SIGKILL, it leads once the lease is over: 20 to 30 s later ([`lead`]).
//!
//! [`lead`]: https://docs.rs/redisson-lock/latest/redisson_lock/struct.Lock.html#method.lead

use std::time::Duration;

use redisson_lock::{Error, HoldHandle, LockClient};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    LockClient::scope(&url, async |client| {
        let leader = client.lock("reports:leader");
        // The body is dropped as soon as the lock is at risk, and starts again once this process leads again.
        // When the scope ends, the lock is free.
        tokio::select! {
            done = leader.lead(write_reports) => done,
            () = stopped() => Ok(()),
        }
    })
    .await
}

async fn write_reports(held: HoldHandle) -> Result<(), Error> {
    println!("leading as {}", held.owner());
    for report in 1.. {
        tokio::time::sleep(Duration::from_millis(200)).await;
        println!("report {report}");
    }
    Ok(())
}

/// Waits for Ctrl-C, or for the SIGTERM with which service managers and containers end a process.
async fn stopped() {
    #[cfg(unix)]
    let terminated = async {
        use tokio::signal::unix::{SignalKind, signal};
        let signal = signal(SignalKind::terminate());
        signal.expect("a handler can be installed").recv().await;
    };
    #[cfg(not(unix))]
    let terminated = std::future::pending();
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminated => {}
    }
}
