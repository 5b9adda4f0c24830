//! A loader that does not read the kernel's types.

use std::io;
use std::thread;

use aya::EbpfLoader;
use libc::{
    BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, PR_SET_SECCOMP, SECCOMP_MODE_FILTER,
    SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, c_long, sock_filter, sock_fprog,
};
use nix::sys::prctl;

/// A loader of eBPF objects.
///
/// [`EbpfLoader::new`] reads the types of the whole kernel (`/sys/kernel/btf/vmlinux`), to relocate
/// programs by them: 20 ms, and as many MiB at the peak. Ours need no relocation, and aya has no
/// option for that. So the loader is created by a thread that cannot open files. Without such
/// threads in the kernel (`CONFIG_SECCOMP_FILTER`) the types are read.
#[must_use]
pub fn loader() -> EbpfLoader<'static> {
    let made = thread::Builder::new()
        .name("loader".to_owned())
        .spawn(|| {
            if let Err(error) = open_nothing() {
                tracing::debug!("the kernel's types are read, for nothing: {error}");
            }
            EbpfLoader::new()
        })
        .map(thread::JoinHandle::join);
    match made {
        Ok(Ok(loader)) => loader,
        Ok(Err(_panic)) => EbpfLoader::new(),
        Err(error) => {
            tracing::debug!("no thread for the loader: {error}");
            EbpfLoader::new()
        }
    }
}

/// The calls that open files. musl takes the older one where there is one.
const CALLS: &[c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    libc::SYS_openat,
];

/// Makes the kernel refuse these calls to this thread for as long as it lives. It takes no
/// capability.
fn open_nothing() -> io::Result<()> {
    /// `ENOENT`, in the low half of what a filter gives (`SECCOMP_RET_DATA`).
    const NOT_FOUND: u32 = SECCOMP_RET_ERRNO | libc::ENOENT.cast_unsigned();
    /// `nr` of `struct seccomp_data` of `include/uapi/linux/seccomp.h`.
    const NUMBER: u32 = 0;
    // No program of another architecture runs in this thread, so the number says which call it is.
    let mut filter = vec![step(BPF_LD | BPF_W | BPF_ABS, 0, NUMBER)?];
    for call in CALLS {
        let number = u32::try_from(*call).map_err(io::Error::other)?;
        filter.push(step(BPF_JMP | BPF_JEQ | BPF_K, 1, number)?);
        filter.push(step(BPF_RET | BPF_K, 0, NOT_FOUND)?);
    }
    filter.push(step(BPF_RET | BPF_K, 0, SECCOMP_RET_ALLOW)?);
    let program = sock_fprog {
        len: u16::try_from(filter.len()).map_err(io::Error::other)?,
        filter: filter.as_mut_ptr(),
    };
    prctl::set_no_new_privs()?;
    // SAFETY: the kernel copies the program, which is whole and alive.
    match unsafe { libc::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &raw const program) } {
        0 => Ok(()),
        _refused => Err(io::Error::last_os_error()),
    }
}

/// An instruction. A comparison continues with the next one if equal, and otherwise skips `skips`
/// of them.
fn step(code: u32, skips: u8, k: u32) -> io::Result<sock_filter> {
    Ok(sock_filter {
        code: u16::try_from(code).map_err(io::Error::other)?,
        jt: 0,
        jf: skips,
        k,
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::thread;

    use super::{loader, open_nothing};
    use crate::bpf::OBJECT;

    /// Where the kernel shows its types.
    const TYPES: &str = "/sys/kernel/btf/vmlinux";

    #[test]
    fn our_programs_have_nothing_to_relocate_by_types() {
        let object = aya_obj::Object::parse(OBJECT).unwrap();
        assert!(!object.has_btf_relocations());
    }

    #[test]
    fn the_loader_has_no_types_of_the_kernel() {
        let made = format!("{:?}", loader());
        assert!(File::open(TYPES).is_ok(), "this thread can open files");
        assert!(made.contains("btf: None"), "{made:.200}");
    }

    #[test]
    fn only_the_thread_that_asks_for_it_can_open_nothing() {
        let opened = thread::spawn(|| open_nothing().map(|()| File::open(TYPES)));
        let opened = opened.join().unwrap().unwrap();
        assert_eq!(
            opened.map_err(|error| error.kind()).err(),
            Some(std::io::ErrorKind::NotFound)
        );
        assert!(File::open(TYPES).is_ok());
    }
}
