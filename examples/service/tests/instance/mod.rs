//! An instance of the service, as a process, and how to ask it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// An instance of the service.
pub(crate) struct Instance {
    pub(crate) process: Child,
    pub(crate) address: String,
}

impl Instance {
    pub(crate) fn start(redis: &str) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_service"))
            .args([redis, "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        let stdout = process.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening on ");
        Self {
            address: address.expect("its address").to_owned(),
            process,
        }
    }

    pub(crate) fn ask(&self, request: &str) -> (u16, String) {
        ask(&self.address, request)
    }
}

/// The status and the body of an answer.
pub(crate) fn ask(address: &str, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let text = format!("{request} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    stream.write_all(text.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).expect("a status");
    (status.parse().expect("a number"), body.to_owned())
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
