//! The socket's file, and the end of the server.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use api::{Client, ClientError, ErrorCode};
use towpath::server::{Handle, Server};

use crate::fake::{DEADLINE, LIMITS};

/// A runtime for the current thread.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

#[test]
fn what_is_not_a_left_socket_is_never_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = runtime();
    let _inside = runtime.enter();
    let file = folder.path().join("notes.txt");
    std::fs::write(&file, "precious").unwrap();
    let error = Server::bind(&file, LIMITS).unwrap_err().to_string();
    assert!(error.contains("notes.txt"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");

    let used = folder.path().join("used.sock");
    let listener = std::os::unix::net::UnixListener::bind(&used).unwrap();
    let error = Server::bind(&used, LIMITS).unwrap_err().to_string();
    assert!(error.contains("used.sock"), "{error}");
    assert!(UnixStream::connect(&used).is_ok());
    drop(listener);
}

#[test]
fn a_socket_that_another_one_replaced_is_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let runtime = runtime();
    let _inside = runtime.enter();
    let first = Server::bind(&path, LIMITS).unwrap();
    std::fs::remove_file(&path).unwrap();
    let _second = Server::bind(&path, LIMITS).unwrap();
    drop(first);
    assert!(UnixStream::connect(&path).is_ok());
}

#[test]
fn who_waits_when_the_agent_stops_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let caller = runtime().block_on(async {
        let server = Server::bind(&path, LIMITS).unwrap();
        let (handle, mut commands) = Handle::new(DEADLINE);
        let caller = std::thread::spawn({
            let client = Client::new(&path);
            move || runtime().block_on(client.status())
        });
        let command = tokio::select! {
            () = server.serve(handle) => None,
            command = commands.recv() => command,
        };
        drop((command, commands));
        server.finish(DEADLINE).await;
        caller
    });
    match caller.join().unwrap() {
        Err(ClientError::Refused(error)) => assert_eq!(error.code, ErrorCode::NotReady, "{error}"),
        other => panic!("{other:?}"),
    }
    assert!(!path.exists());
}

#[test]
fn who_does_not_ask_holds_nobody_up_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    runtime().block_on(async {
        let server = Server::bind(&path, LIMITS).unwrap();
        let (handle, _commands) = Handle::new(DEADLINE);
        let _silent = UnixStream::connect(&path).unwrap();
        tokio::select! {
            () = server.serve(handle) => {}
            () = tokio::task::yield_now() => {}
        }
        let patience = Duration::from_millis(50);
        let ended = tokio::time::timeout(DEADLINE, server.finish(patience));
        assert!(ended.await.is_ok());
    });
}
