//! A service that sells: several instances share one stock, and Java instances with Redisson may be among them.
//!
//! `POST /sell/42` sells one, `GET /report` is written by one instance at a time, `GET /ready` is for a load balancer,
//! `GET /metrics` for Prometheus. It ends on Ctrl-C and on SIGTERM, after the requests in progress.
//!
//! `cargo run --package service -- redis://127.0.0.1:6379 127.0.0.1:8080`

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use redisson_lock::{Error, ErrorKind, LockClient, TryLock};
use serde_json::json;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let redis = arguments.next();
    let redis = redis.unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let address = arguments.next();
    let address = address.unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    // Buckets, unlike quantiles, can be added up over instances.
    let metrics = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)?
        .install_recorder()?;
    let upkeep = metrics.clone();
    tokio::spawn(async move {
        // Otherwise what nobody scrapes is kept.
        let mut clock = tokio::time::interval(Duration::from_secs(5));
        loop {
            clock.tick().await;
            upkeep.run_upkeep();
        }
    });
    let listener = TcpListener::bind(&address).await?;
    println!("listening on {}", listener.local_addr()?);
    LockClient::builder()
        .client_name("service")
        .command_timeout(Duration::from_secs(1))
        .scope(&redis, async |locks| {
            // Says at the start what would go wrong at the first sale.
            let missing = locks.check("stock:42").await?;
            if !missing.is_empty() {
                eprintln!("missing permissions: {}", missing.join(" "));
            }
            let service = Service {
                locks,
                metrics,
                stock: Arc::default(),
            };
            axum::serve(listener, routes(service))
                .with_graceful_shutdown(stopped())
                .await
                .map_err(Box::from)
        })
        .await
}

/// Seconds, from a free lock to one that is waited for for long.
const BUCKETS: [f64; 12] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 60.0,
];

fn routes(service: Service) -> Router {
    Router::new()
        .route("/sell/{item}", post(sell))
        .route("/report", get(report))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .with_state(service)
}

#[derive(Clone)]
struct Service {
    locks: LockClient,
    metrics: PrometheusHandle,
    /// What would be a database that all instances share.
    stock: Arc<Mutex<HashMap<u64, u32>>>,
}

/// Sells one; after two seconds without the lock it says that there are too many buyers.
async fn sell(State(service): State<Service>, Path(item): Path<u64>) -> Result<Response, Failed> {
    let lock = service.locks.lock(format!("stock:{item}")).class("stock");
    let sold = lock
        .try_run_for(Duration::from_secs(2), |_held| async {
            let mut stock = service.stock.lock().expect("nobody panics");
            let left = stock.entry(item).or_insert(3);
            let sold = *left > 0;
            *left = left.saturating_sub(1);
            Ok::<_, Error>(sold.then_some(*left))
        })
        .await?;
    Ok(match sold {
        Some(Some(left)) => Json(json!({ "left": left })).into_response(),
        Some(None) => (StatusCode::GONE, "sold out").into_response(),
        None => (StatusCode::CONFLICT, "too many buyers").into_response(),
    })
}

/// One instance at a time; the others say who has it.
async fn report(State(service): State<Service>) -> Result<Response, Failed> {
    let lock = service.locks.lock("report").class("report");
    match lock.try_lock_or_holder().await? {
        TryLock::Acquired(guard) => {
            let text = format!("{:?}", service.stock.lock().expect("nobody panics"));
            // The report is written, whatever Redis answers now.
            if let Err(error) = guard.unlock().await {
                eprintln!("{error}");
            }
            Ok(text.into_response())
        }
        TryLock::Busy { holder } => Ok((StatusCode::CONFLICT, Json(holder)).into_response()),
    }
}

/// From local information: a probe that comes often asks nobody.
async fn ready(State(service): State<Service>) -> Response {
    let status = if service.locks.is_connected() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(service.locks.stats())).into_response()
}

async fn metrics(State(service): State<Service>) -> String {
    service.metrics.render()
}

/// A failure of the lock as an answer: later again, or not at all.
struct Failed(Error);

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let status = match self.0.kind() {
            ErrorKind::Busy => StatusCode::CONFLICT,
            ErrorKind::Unavailable | ErrorKind::Closed => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, self.0.to_string()).into_response()
    }
}

async fn stopped() {
    let interrupted = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminated = signal(SignalKind::terminate()).expect("signals can be heard");
        tokio::select! {
            _ = interrupted => {}
            _ = terminated.recv() => {}
        }
    }
    #[cfg(not(unix))]
    let _ = interrupted.await;
}
