//! Records that survive, and records that are set aside.

use proptest::prelude::*;

use std::cell::Cell;
use std::fs::File;
use std::io;

use super::*;

fn endpoint(container: &str) -> Endpoint {
    Endpoint {
        owner: Owner {
            container_id: container.into(),
            interface: "eth0".into(),
        },
        netns: "/run/netns/pod".into(),
        addresses: [
            "10.0.1.20".parse().unwrap(),
            "2001:db8::20".parse().unwrap(),
        ]
        .into(),
        mtu: 9001,
        about: EndpointMeta::default(),
    }
}

fn reopen(folder: &Path) -> Stored {
    Store::open(folder).unwrap().1
}

#[test]
fn what_is_put_comes_back_and_what_is_removed_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("endpoints");
    let (mut store, stored) = Store::open(&path).unwrap();
    assert!(stored.endpoints.is_empty() && stored.corrupt.is_empty());
    let (a, b) = (endpoint("a"), endpoint("b"));
    store.put(&a).unwrap();
    store.put(&a).unwrap();
    store.put(&b).unwrap();
    assert_eq!(
        reopen(&path).endpoints,
        BTreeMap::from([(a.id(), a.clone()), (b.id(), b.clone())])
    );
    store.remove(a.id()).unwrap();
    store.remove(a.id()).unwrap();
    assert_eq!(reopen(&path).endpoints, BTreeMap::from([(b.id(), b)]));
}

/// A record that has its name is in force, whatever happens to the folder: the next agent sees it.
/// So the write succeeds, and the status reports what a power cut may undo.
#[test]
fn what_a_folder_that_cannot_be_synced_has_is_in_force_and_told() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = Store::open(folder.path()).unwrap();
    let (a, b) = (endpoint("a"), endpoint("b"));
    store.put(&a).unwrap();
    assert_eq!(store.unsynced(), None);
    store
        .folder
        .set_sync(|_| Err(io::Error::from_raw_os_error(libc::EIO)));
    store.put(&b).unwrap();
    store.remove(a.id()).unwrap();
    let text = store.unsynced().unwrap();
    assert!(text.contains("Input/output error"), "{text}");
    assert_eq!(
        reopen(folder.path()).endpoints,
        BTreeMap::from([(b.id(), b.clone())])
    );
    store.restore([&b]).unwrap();
    assert!(store.unsynced().is_some(), "it still cannot");
    store.folder.set_sync(|_| Ok(()));
    store.restore([&b]).unwrap();
    assert_eq!(store.unsynced(), None);
}

/// A burst's records are made last together, before any of its pods is made.
#[test]
fn a_folder_is_synced_once_for_all_that_was_put() {
    thread_local! {
        static SYNCS: Cell<u32> = const { Cell::new(0) };
    }
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = Store::open(folder.path()).unwrap();
    store.folder.set_sync(|_| {
        SYNCS.set(SYNCS.get() + 1);
        Ok(())
    });
    for name in ["a", "b", "c"] {
        store.put(&endpoint(name)).unwrap();
    }
    assert_eq!(SYNCS.get(), 0);
    store.sync();
    store.sync();
    assert_eq!(SYNCS.get(), 1);
    store.restore([&endpoint("a"), &endpoint("d")]).unwrap();
    assert_eq!(SYNCS.get(), 2);
}

#[test]
fn a_record_under_another_name_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = Store::open(folder.path()).unwrap();
    let (a, b) = (endpoint("a"), endpoint("b"));
    store.put(&a).unwrap();
    fs::rename(store.path(a.id()), store.path(b.id())).unwrap();
    for _ in 0..2 {
        let stored = reopen(folder.path());
        assert!(stored.endpoints.is_empty());
        assert_eq!(
            stored.corrupt,
            BTreeMap::from([(b.id(), store.corrupt_path(b.id()))])
        );
    }
    store.remove(b.id()).unwrap();
    assert!(reopen(folder.path()).corrupt.is_empty());
}

#[test]
fn a_record_with_a_value_that_is_not_allowed_is_set_aside() {
    let good = r#"{"version":1,"owner":{"container-id":"a","interface":"eth0"},
        "netns":"/run/netns/pod","addresses":["10.0.1.20"],"mtu":1500}"#;
    let id = endpoint("a").id();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(format!("{id}{SUFFIX}"));
    fs::write(&path, good).unwrap();
    assert_eq!(reopen(folder.path()).endpoints.len(), 1);
    for (from, to) in [
        ("\"version\":1", "\"version\":3"),
        ("1500", "68"),
        ("/run/netns/pod", "run/netns/pod"),
        ("\"10.0.1.20\"", ""),
        ("\"mtu\"", "\"mtu\":1500,\"more\""),
    ] {
        assert!(good.contains(from));
        fs::write(&path, good.replace(from, to)).unwrap();
        let stored = reopen(folder.path());
        assert!(stored.endpoints.is_empty(), "{to}");
        assert_eq!(stored.corrupt.len(), 1, "{to}");
    }
}

/// Nothing of this comes from the agent, but nothing of it may keep the agent from starting.
#[test]
fn what_is_no_file_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = Store::open(folder.path()).unwrap();
    let good = endpoint("good");
    store.put(&good).unwrap();
    fs::create_dir(folder.path().join(".new-folder")).unwrap();
    let [fifo, endless, directory] = ["fifo", "endless", "directory"].map(endpoint);
    nix::unistd::mkfifo(&store.path(fifo.id()), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::os::unix::fs::symlink("/dev/zero", store.path(endless.id())).unwrap();
    fs::create_dir(store.path(directory.id())).unwrap();
    let (sender, opened) = std::sync::mpsc::channel();
    let path = folder.path().to_owned();
    std::thread::spawn(move || sender.send(Store::open(&path).map(|(_, stored)| stored)));
    let stored = opened
        .recv_timeout(std::time::Duration::from_secs(10))
        .expect("opening the folder takes too long")
        .unwrap();
    assert_eq!(stored.endpoints, BTreeMap::from([(good.id(), good)]));
    assert_eq!(stored.corrupt.len(), 3, "{:?}", stored.corrupt);

    // A record that cannot be set aside, because there is one already, stays where it is.
    fs::create_dir(store.path(fifo.id())).unwrap();
    let corrupt = reopen(folder.path()).corrupt;
    assert_eq!(corrupt.len(), 3, "{corrupt:?}");
}

#[test]
fn a_record_that_cannot_be_written_keeps_no_other_one_back() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = Store::open(folder.path()).unwrap();
    let all = ["a", "b", "c"].map(endpoint);
    let stuck = store.path(all[0].id());
    std::os::unix::fs::symlink(&stuck, &stuck).unwrap();
    let error = store.restore(&all).unwrap_err();
    assert!(format!("{error:#}").contains(&stuck.display().to_string()));
    for endpoint in &all[1..] {
        assert!(store.path(endpoint.id()).exists());
    }
}

proptest! {
    // Every case waits for the disk several times.
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Wherever a crash cuts the temporary file, and whatever else lies around, the records
    /// that were put before are whole.
    #[test]
    fn a_cut_temporary_file_harms_nothing(cut in 0_usize..200, junk in "[a-z]{1,12}") {
        let folder = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(folder.path()).unwrap();
        let a = endpoint("a");
        store.put(&a).unwrap();
        let whole = fs::read(store.path(a.id())).unwrap();
        let cut = &whole[..cut.min(whole.len())];
        let temporary = folder.path().join(".new-x1");
        fs::write(&temporary, cut).unwrap();
        fs::write(folder.path().join(junk), cut).unwrap();
        let stored = reopen(folder.path());
        prop_assert_eq!(stored.endpoints, BTreeMap::from([(a.id(), a)]));
        prop_assert!(stored.corrupt.is_empty());
        prop_assert!(!temporary.exists());
    }

    /// A record that was cut short is set aside, and never read as another one.
    #[test]
    fn a_cut_record_is_set_aside(part in 0.0_f64..1.0) {
        let folder = tempfile::tempdir().unwrap();
        let (mut store, _) = Store::open(folder.path()).unwrap();
        let (a, b) = (endpoint("a"), endpoint("b"));
        store.put(&a).unwrap();
        store.put(&b).unwrap();
        let file = File::options().write(true).open(store.path(a.id())).unwrap();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            clippy::cast_sign_loss,
            reason = "a length of some hundred bytes"
        )]
        file.set_len((part * file.metadata().unwrap().len() as f64) as u64).unwrap();
        let stored = reopen(folder.path());
        prop_assert_eq!(stored.endpoints, BTreeMap::from([(b.id(), b)]));
        prop_assert!(stored.corrupt.contains_key(&a.id()));
    }
}
