//! The stream of bytes of one connection: TCP, TLS over it, or a Unix socket.

use std::io;

use socket2::SockRef;
use tokio::net::{TcpStream, lookup_host};

use crate::redis::settings::Target;
use crate::redis::settings::server::{ServerPlace, Socket};
use crate::redis::transport::{ByteStream, ConnectionError};

/// Connects to a server.
pub(super) async fn open(target: &Target) -> Result<Box<dyn ByteStream>, ConnectionError> {
    #[cfg(feature = "test-util")]
    if let Target::Custom(transport) = target {
        return transport.open().await;
    }
    let server = target.server().ok_or(ConnectionError::NoSockets)?;
    let (host, port) = match server.place()? {
        #[cfg(unix)]
        ServerPlace::Unix(path) => {
            let stream = tokio::net::UnixStream::connect(path).await;
            return Ok(Box::new(stream.map_err(failed)?));
        }
        ServerPlace::Tcp(address) => (&*address.host, address.port),
    };
    let stream = tcp(host, port, &server.socket()).await.map_err(failed)?;
    #[cfg(feature = "tls-rustls")]
    if let Some((connector, name)) = server.tls()? {
        let stream = connector.connect(name, stream).await.map_err(failed)?;
        return Ok(Box::new(stream));
    }
    Ok(Box::new(stream))
}

/// The operating system's message, without the number; or the problem that rustls has found.
pub(super) fn failed(problem: io::Error) -> ConnectionError {
    #[cfg(feature = "tls-rustls")]
    if problem
        .get_ref()
        .is_some_and(|inner| inner.is::<rustls::Error>())
    {
        return ConnectionError::Lost(format!("{problem:?}"));
    }
    let text = problem.to_string();
    let sentence = text
        .split_once(" (os error")
        .map_or(&*text, |(said, _)| said);
    ConnectionError::Lost(sentence.to_owned())
}

/// Connects to the first of the host's addresses that accepts.
pub(super) async fn tcp(host: &str, port: u16, socket: &Socket) -> io::Result<TcpStream> {
    let mut problem = None;
    for address in lookup_host((host, port)).await? {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                set(&stream, socket)?;
                return Ok(stream);
            }
            Err(error) => problem = Some(error),
        }
    }
    let nowhere = || io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    Err(problem.unwrap_or_else(nowhere))
}

fn set(stream: &TcpStream, settings: &Socket) -> io::Result<()> {
    stream.set_nodelay(true)?;
    if let Some(ttl) = settings.ttl {
        stream.set_ttl(ttl)?;
    }
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&settings.keepalive)?;
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    socket.set_tcp_user_timeout(Some(settings.user_timeout))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use socket2::TcpKeepalive;
    use test_support::tokio;
    use tokio::net::TcpListener;

    use super::*;

    /// A server that vanishes is noticed by the system, and no command waits for the next one.
    #[tokio::test]
    async fn a_socket_is_set_as_it_should_be() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let idle = Duration::from_secs(7);
        let settings = Socket {
            ttl: Some(9),
            keepalive: TcpKeepalive::new().with_time(idle),
            #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
            user_timeout: idle,
        };
        let stream = tcp("127.0.0.1", port, &settings).await.expect("it accepts");
        assert!(stream.nodelay().expect("asked"));
        assert_eq!(stream.ttl().expect("asked"), 9);
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().expect("asked"));
        #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
        assert_eq!(socket.tcp_user_timeout().expect("asked"), Some(idle));
    }
}
