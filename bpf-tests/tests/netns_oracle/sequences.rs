//! Every file of sequences, through both.

use std::collections::BTreeSet;

use crate::compare::{agree, delivers, differences_allowed, differences_used, files, steps};

/// Tests named like the files that they play.
macro_rules! play {
    ($(#[test] fn $name:ident();)+) => {
        $(#[test]
        fn $name() {
            agree(stringify!($name));
        })+

        #[test]
        fn every_file_is_played() {
            let played: BTreeSet<_> = [$(stringify!($name).to_owned()),+].into();
            assert_eq!(played, files());
        }
    };
}

play! {
    #[test] fn echo();
    #[test] fn errors_about_unknown_flows();
    #[test] fn errors_from_pods();
    #[test] fn errors_to_pods();
    #[test] fn fragments();
    #[test] fn inbound();
    #[test] fn sctp();
    #[test] fn tcp_close();
    #[test] fn tcp_connection();
    #[test] fn tcp_odd_starts();
    #[test] fn tcp_reuse();
    #[test] fn tcp_windows();
    #[test] fn udp();
    #[test] fn unsolicited();
}

/// A difference that no sequence shows must be removed from the documentation.
#[test]
fn differences_are_those_of_the_documentation() {
    assert_eq!(differences_used(), differences_allowed());
}

/// A sequence through which nothing passes would show nothing.
#[test]
fn every_file_has_packets_that_pass() {
    for name in files() {
        assert!(steps(&name).iter().any(delivers), "{name}");
    }
}
