//! Frames on and off a device, byte by byte, and network namespaces without a name.

use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike as _};

/// A network namespace without a name; it ends with this value.
pub struct Namespace(File);

impl Namespace {
    /// A new one. The calling thread stays where it is.
    ///
    /// # Errors
    /// Without root.
    pub fn new() -> Result<Self> {
        let here = Self::current()?;
        unshare(CloneFlags::CLONE_NEWNET).context("a network namespace needs root")?;
        let new = Self::current();
        here.enter()?;
        new
    }

    /// The calling thread's.
    ///
    /// # Errors
    /// Without procfs.
    pub fn current() -> Result<Self> {
        Ok(Self(
            File::open("/proc/thread-self/ns/net").context("/proc/thread-self/ns/net")?,
        ))
    }

    /// Runs `work` in it.
    ///
    /// # Errors
    /// Those of `work`, and when the thread cannot change its namespace.
    pub fn run<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let here = Self::current()?;
        self.enter()?;
        let result = work();
        here.enter()?;
        result
    }

    /// A path by which `ip link ... netns` finds it.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    fn enter(&self) -> Result<()> {
        setns(&self.0, CloneFlags::CLONE_NEWNET).context("setns")
    }
}

/// A packet socket on one device.
pub struct RawSocket(OwnedFd);

/// `struct virtio_net_hdr` of `include/uapi/linux/virtio_net.h`.
const VNET_HEADER: usize = 10;

impl RawSocket {
    /// Opens one in the current namespace.
    ///
    /// # Errors
    /// Without root, or without the device.
    pub fn open(ifindex: u32) -> Result<Self> {
        let fd = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::EthAll,
        )
        .context("a packet socket needs root")?;
        // SAFETY: every field of the struct is an integer, for which zero is a value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::c_ushort::try_from(libc::AF_PACKET)?;
        address.sll_protocol = u16::try_from(libc::ETH_P_ALL)?.to_be();
        address.sll_ifindex = i32::try_from(ifindex)?;
        // SAFETY: the address is valid for its length, which the kernel reads and keeps nothing of.
        let bound = unsafe {
            libc::bind(
                fd.as_raw_fd(),
                (&raw const address).cast(),
                libc::socklen_t::try_from(size_of_val(&address))?,
            )
        };
        Errno::result(bound).with_context(|| format!("a packet socket on device {ifindex}"))?;
        Ok(Self(fd))
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        send(self.0.as_raw_fd(), frame, MsgFlags::empty()).context("sending a frame")?;
        Ok(())
    }

    /// Sends a frame of more than a page of which the kernel keeps the Ethernet header alone in
    /// the buffer's linear part. The socket cannot receive afterwards.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn send_scattered(&self, frame: &[u8]) -> Result<()> {
        let on: libc::c_int = 1;
        // SAFETY: the option's value is valid for its length.
        let set = unsafe {
            libc::setsockopt(
                self.0.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_VNET_HDR,
                (&raw const on).cast(),
                libc::socklen_t::try_from(size_of_val(&on))?,
            )
        };
        Errno::result(set).context("PACKET_VNET_HDR")?;
        let mut header = [0; VNET_HEADER];
        // `hdr_len`, in the machine's byte order.
        header[2..4].copy_from_slice(&14_u16.to_ne_bytes());
        self.send(&[&header, frame].concat())
    }

    /// The first frame within `deadline` that `wanted` takes; the others are lost.
    ///
    /// # Errors
    /// When receiving fails.
    pub fn receive(
        &self,
        deadline: Duration,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<Option<Vec<u8>>> {
        let end = Instant::now() + deadline;
        let mut buffer = vec![0; 1 << 16];
        setsockopt(&self.0, ReceiveTimeout, &TimeVal::milliseconds(20))?;
        while Instant::now() < end {
            match recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Ok(length) if wanted(&buffer[..length]) => {
                    return Ok(Some(buffer[..length].to_vec()));
                }
                Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(error) => return Err(error).context("receiving a frame"),
            }
        }
        Ok(None)
    }
}
