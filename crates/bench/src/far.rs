//! A server that is a network away: a proxy that delivers everything half a round trip late, in
//! both directions. On one machine a small write that waits for the acknowledgement of the one
//! before it costs nothing; here it shows.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Passes connections on to `port`, and returns the port for them. It lives as long as the process.
pub fn away(port: u16, round_trip: Duration) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let own = listener.local_addr().expect("an address").port();
    thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.expect("accepted");
            let server = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
            for socket in [&client, &server] {
                socket.set_nodelay(true).expect("TCP");
            }
            let again = |socket: &TcpStream| socket.try_clone().expect("a descriptor");
            late(again(&client), again(&server), round_trip / 2);
            late(server, client, round_trip / 2);
        }
    });
    own
}

/// Delivers what `from` brings to `to`, each piece so much later.
fn late(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let (pieces, arriving) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            if pieces
                .send((Instant::now() + delay, buffer[..read].to_vec()))
                .is_err()
            {
                break;
            }
        }
    });
    thread::spawn(move || {
        for (due, piece) in arriving {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_comes_a_round_trip_late_and_what_is_sent_together_comes_together() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = away(
            listener.local_addr().expect("an address").port(),
            Duration::from_millis(40),
        );
        thread::spawn(move || {
            let (mut socket, _) = listener.accept().expect("a connection");
            let mut buffer = [0; 1];
            while socket.read_exact(&mut buffer).is_ok() {
                socket.write_all(&buffer).expect("the proxy listens");
            }
        });
        let mut socket = TcpStream::connect(("127.0.0.1", port)).expect("the proxy listens");
        let begin = Instant::now();
        socket.write_all(b"abc").expect("sent");
        let mut answer = [0; 3];
        socket.read_exact(&mut answer).expect("answered");
        assert_eq!(&answer, b"abc");
        assert!(begin.elapsed() >= Duration::from_millis(40));
    }
}
