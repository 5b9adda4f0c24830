//! Qdiscs and filters over rtnetlink, in the calling thread's network namespace.
//!
//! Answers are parsed attribute by attribute, and only for the few that matter. A foreign qdisc or
//! filter of an unknown kind must never break a dump.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result, bail};
use api::types::Direction;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_ECHO, NLM_F_EXCL, NLM_F_REQUEST, NetlinkBuffer,
    NetlinkMessage, NlasIterator,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{
    TcAttribute, TcBpfFlags, TcFilterBpfOption, TcHandle, TcHeader, TcMessage, TcOption,
};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};

/// Attribute numbers, from `include/uapi/linux/rtnetlink.h` and
/// `include/uapi/linux/pkt_cls.h`.
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_CHAIN: u16 = 11;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_ID: u16 = 11;

/// Large enough for every part of a dump (`NLMSG_GOODSIZE` grows to 32 KiB with the reader's
/// buffer).
const BUFFER: usize = 32 * 1024;

/// A filter of every protocol.
const ETH_P_ALL: u16 = 3;

/// A qdisc of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::bpf) struct Qdisc {
    /// The device.
    pub(in crate::bpf) ifindex: u32,
    /// Its place; qdiscs below another one are ignored.
    pub(in crate::bpf) place: Place,
    /// Its kind: at the ingress `clsact`, or `ingress`, which takes its place.
    pub(in crate::bpf) kind: String,
}

/// Where a qdisc is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bpf) enum Place {
    /// At the device's ingress.
    Ingress,
    /// At the root of its egress.
    Root,
}

/// A filter of a clsact or ingress qdisc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::bpf) struct Filter {
    /// Its priority: lower ones run first.
    pub(in crate::bpf) priority: u16,
    /// Its handle, unique within its priority.
    pub(in crate::bpf) handle: u32,
    /// Its chain; packets start in 0.
    pub(in crate::bpf) chain: u32,
    /// Its kind, such as `bpf` or `flower`.
    pub(in crate::bpf) kind: String,
    /// The name of a BPF filter.
    pub(in crate::bpf) name: Option<String>,
    /// The program's id of a BPF filter.
    pub(in crate::bpf) program: Option<u32>,
}

impl Filter {
    /// True if this is a filter and not its frame: a priority announces itself without a handle,
    /// and a hash table of u32 has a handle without a node (`TC_U32_NODE` in
    /// `include/uapi/linux/pkt_cls.h`).
    fn matches_packets(&self) -> bool {
        match self.kind.as_str() {
            "u32" => self.handle & 0xfff != 0,
            _other => self.handle != 0,
        }
    }
}

/// A filter to be put on a hook.
pub(in crate::bpf) struct NewFilter<'a> {
    /// The device.
    pub(in crate::bpf) ifindex: u32,
    /// The hook.
    pub(in crate::bpf) direction: Direction,
    /// Priority.
    pub(in crate::bpf) priority: u16,
    /// Handle.
    pub(in crate::bpf) handle: u32,
    /// Name.
    pub(in crate::bpf) name: &'a str,
    /// Program.
    pub(in crate::bpf) program: BorrowedFd<'a>,
}

/// An rtnetlink socket.
pub(in crate::bpf) struct TcSocket(OwnedFd);

/// One message of an answer.
struct Answer {
    header: TcHeader,
    attributes: Vec<u8>,
}

impl TcSocket {
    /// Opens a socket in the calling thread's network namespace.
    pub(in crate::bpf) fn open() -> Result<Self> {
        socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkRoute,
        )
        .map(Self)
        .context("cannot open an rtnetlink socket")
    }

    /// Every device's qdiscs.
    pub(in crate::bpf) fn qdiscs(&self) -> Result<Vec<Qdisc>> {
        let request = RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default());
        let answers = self
            .request(request, NLM_F_DUMP)
            .context("cannot list the qdiscs")?;
        let place = |parent| match parent {
            TcHandle::INGRESS => Some(Place::Ingress),
            TcHandle::ROOT => Some(Place::Root),
            _below => None,
        };
        Ok(answers
            .into_iter()
            .filter_map(|answer| {
                Some(Qdisc {
                    ifindex: u32::try_from(answer.header.index).ok()?,
                    place: place(answer.header.parent)?,
                    kind: text(&answer.attributes, TCA_KIND)?,
                })
            })
            .collect())
    }

    /// Every device's clsact or ingress qdisc.
    pub(in crate::bpf) fn ingress_qdiscs(&self) -> Result<Vec<Qdisc>> {
        let all = self.qdiscs()?.into_iter();
        Ok(all.filter(|one| one.place == Place::Ingress).collect())
    }

    /// The kind of a device's clsact or ingress qdisc, if it has one. Unlike a dump, this takes no
    /// longer on a node with many devices.
    pub(in crate::bpf) fn ingress_kind(&self, ifindex: u32) -> Result<Option<String>> {
        let mut message = with_device(ifindex)?;
        message.header.parent = TcHandle::CLSACT;
        let request = RouteNetlinkMessage::GetQueueDiscipline(message);
        // Before Linux 6.8 the caller gets the notification only with NLM_F_ECHO.
        let answers = match self.request(request, NLM_F_ACK | NLM_F_ECHO) {
            Err(error) if is_gone(&error) => return Ok(None),
            other => other
                .with_context(|| format!("cannot read the ingress qdisc of device {ifindex}"))?,
        };
        let mut kinds = answers.iter();
        Ok(kinds.find_map(|answer| text(&answer.attributes, TCA_KIND)))
    }

    /// Adds a clsact qdisc. `EEXIST` when the place is taken, by clsact or ingress.
    pub(in crate::bpf) fn add_clsact(&self, ifindex: u32) -> Result<()> {
        let request = RouteNetlinkMessage::NewQueueDiscipline(clsact(ifindex)?);
        self.request(request, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL)
            .map(drop)
    }

    /// Removes a clsact qdisc with all that hangs at it.
    pub(in crate::bpf) fn delete_clsact(&self, ifindex: u32) -> Result<()> {
        let request = RouteNetlinkMessage::DelQueueDiscipline(clsact(ifindex)?);
        gone_is_fine(self.request(request, NLM_F_ACK))
            .with_context(|| format!("cannot remove the clsact qdisc of device {ifindex}"))
    }

    /// The filters of a hook in the order they run; none when the device or its qdisc is missing.
    pub(in crate::bpf) fn filters(
        &self,
        ifindex: u32,
        direction: Direction,
    ) -> Result<Vec<Filter>> {
        let request =
            RouteNetlinkMessage::GetTrafficFilter(filter_message(ifindex, direction, 0, 0)?);
        let answers = match self.request(request, NLM_F_DUMP) {
            Err(error) if is_gone(&error) => return Ok(Vec::new()),
            other => {
                other.with_context(|| format!("cannot list the filters of device {ifindex}"))?
            }
        };
        Ok(answers
            .into_iter()
            .filter_map(|answer| {
                let kind = text(&answer.attributes, TCA_KIND)?;
                // Each kind numbers its options by itself.
                let options = find(&answer.attributes, TCA_OPTIONS)
                    .filter(|_bytes| kind == "bpf")
                    .unwrap_or_default();
                Some(Filter {
                    priority: u16::try_from(answer.header.info >> 16).ok()?,
                    handle: answer.header.handle.into(),
                    chain: number(&answer.attributes, TCA_CHAIN).unwrap_or(0),
                    kind,
                    name: text(&options, TCA_BPF_NAME),
                    program: number(&options, TCA_BPF_ID),
                })
            })
            .filter(Filter::matches_packets)
            .collect())
    }

    /// Adds a filter, or puts it into the place of the one with the same priority and handle, in
    /// one step (`cls_bpf_change` in `net/sched/cls_bpf.c` swaps the list entry).
    pub(in crate::bpf) fn put_filter(&self, filter: &NewFilter<'_>) -> Result<()> {
        let mut message = filter_message(
            filter.ifindex,
            filter.direction,
            filter.priority,
            filter.handle,
        )?;
        message.attributes = vec![
            TcAttribute::Kind("bpf".to_owned()),
            TcAttribute::Options(vec![
                TcOption::Bpf(TcFilterBpfOption::ProgFd(
                    filter.program.as_raw_fd().cast_unsigned(),
                )),
                TcOption::Bpf(TcFilterBpfOption::ProgName(filter.name.to_owned())),
                TcOption::Bpf(TcFilterBpfOption::Flags(TcBpfFlags::DirectAction)),
            ]),
        ];
        let request = RouteNetlinkMessage::NewTrafficFilter(message);
        self.request(request, NLM_F_ACK | NLM_F_CREATE).map(drop)
    }

    /// Removes a filter; one that is not there is success.
    pub(in crate::bpf) fn delete_filter(
        &self,
        ifindex: u32,
        direction: Direction,
        priority: u16,
        handle: u32,
    ) -> Result<()> {
        let message = filter_message(ifindex, direction, priority, handle)?;
        let request = RouteNetlinkMessage::DelTrafficFilter(message);
        gone_is_fine(self.request(request, NLM_F_ACK))
            .with_context(|| format!("cannot remove our filter from device {ifindex}"))
    }

    /// Sends a request and collects the answers up to the acknowledgement or the dump's end. An
    /// error of the kernel is an [`io::Error`] at the root of the chain.
    fn request(&self, request: RouteNetlinkMessage, flags: u16) -> Result<Vec<Answer>> {
        let mut message = NetlinkMessage::from(request);
        message.header.flags = NLM_F_REQUEST | flags;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        let fd = self.0.as_raw_fd();
        send(fd, &bytes, MsgFlags::empty()).context("cannot send to rtnetlink")?;

        let mut answers = Vec::new();
        let mut buffer = vec![0; BUFFER];
        loop {
            let length =
                recv(fd, &mut buffer, MsgFlags::empty()).context("cannot read from rtnetlink")?;
            let mut rest = buffer.get(..length).unwrap_or_default();
            while !rest.is_empty() {
                let part = NetlinkBuffer::new_checked(rest).context("malformed netlink message")?;
                match i32::from(part.message_type()) {
                    libc::NLMSG_DONE | libc::NLMSG_ERROR => {
                        return acknowledged(part.payload()).map(|()| answers);
                    }
                    _data => answers.push(Answer::parse(part.payload())?),
                }
                let length = usize::try_from(part.length()).unwrap_or(usize::MAX);
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }
}

impl Answer {
    fn parse(payload: &[u8]) -> Result<Self> {
        let header = TcHeader::parse(payload).context("malformed tc message")?;
        let attributes = payload.get(20..).unwrap_or_default().to_vec();
        Ok(Self { header, attributes })
    }
}

/// True if the kernel says that the object of a request is not there: the device, its qdisc
/// (`EINVAL` from `tcf_block_find`), the chain or the filter.
fn is_gone(error: &anyhow::Error) -> bool {
    matches!(
        errno(error),
        Some(libc::ENODEV | libc::ENOENT | libc::EINVAL)
    )
}

/// The kernel's error number, if the error is the kernel's.
pub(in crate::bpf) fn errno(error: &anyhow::Error) -> Option<i32> {
    error.downcast_ref::<io::Error>()?.raw_os_error()
}

fn gone_is_fine(result: Result<Vec<Answer>>) -> Result<()> {
    match result {
        Err(error) if is_gone(&error) => Ok(()),
        other => other.map(drop),
    }
}

/// Reads how a request or a dump ended: a negative error number, 0 for success.
fn acknowledged(payload: &[u8]) -> Result<()> {
    let Some(code) = payload.first_chunk::<4>() else {
        bail!("malformed netlink acknowledgement");
    };
    match i32::from_ne_bytes(*code) {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(-code).into()),
    }
}

fn find(attributes: &[u8], kind: u16) -> Option<Vec<u8>> {
    NlasIterator::new(attributes)
        .filter_map(Result::ok)
        .find(|attribute| attribute.kind() == kind)
        .map(|attribute| attribute.value().to_vec())
}

fn text(attributes: &[u8], kind: u16) -> Option<String> {
    let bytes = find(attributes, kind)?;
    let text = bytes.split(|byte| *byte == 0).next()?;
    Some(String::from_utf8_lossy(text).into_owned())
}

fn number(attributes: &[u8], kind: u16) -> Option<u32> {
    let bytes: [u8; 4] = find(attributes, kind)?.try_into().ok()?;
    Some(u32::from_ne_bytes(bytes))
}

fn with_device(ifindex: u32) -> Result<TcMessage> {
    let index = i32::try_from(ifindex).with_context(|| format!("no device has index {ifindex}"))?;
    Ok(TcMessage::with_index(index))
}

fn clsact(ifindex: u32) -> Result<TcMessage> {
    let mut message = with_device(ifindex)?;
    message.header.handle = TcHandle {
        major: TcHandle::CLSACT.major,
        minor: 0,
    };
    message.header.parent = TcHandle::CLSACT;
    message.attributes = vec![TcAttribute::Kind("clsact".to_owned())];
    Ok(message)
}

fn filter_message(
    ifindex: u32,
    direction: Direction,
    priority: u16,
    handle: u32,
) -> Result<TcMessage> {
    let mut message = with_device(ifindex)?;
    message.header.handle = handle.into();
    message.header.parent = TcHandle {
        major: TcHandle::CLSACT.major,
        minor: match direction {
            Direction::Ingress => TcHandle::MIN_INGRESS,
            Direction::Egress => TcHandle::MIN_EGRESS,
        },
    };
    if priority != 0 {
        message.header.info = u32::from(priority) << 16 | u32::from(ETH_P_ALL.to_be());
    }
    Ok(message)
}
