//! Ports shared by translation and the host: the ports that translation takes by default, and those
//! of them that the host's automatic ports may use too.

use datapath_common::abi::PORTS_PER_BLOCK;
use datapath_common::config::PortSlice;

use super::ports::PortList;

/// Automatic ports that the host keeps, or all where it has fewer.
const KEPT: u32 = 8192;
/// Translation takes no port below, where node ports are and services listen.
const LEAST_PORT: u16 = 32_768;
/// The slices of which there are none.
pub const NO_SLICES: [PortSlice; PortSlice::MAX] = [PortSlice::NONE; PortSlice::MAX];

/// The host's automatic ports, and what of them is reserved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostPorts {
    /// Their range.
    pub automatic: PortList,
    /// The ports that they keep off.
    pub reserved: PortList,
    /// Those of them that we added.
    pub ours: PortList,
}

impl HostPorts {
    /// The ports that other software has reserved.
    #[must_use]
    pub fn others(&self) -> PortList {
        self.reserved.minus(&self.ours)
    }

    /// The automatic ports without those that others have reserved.
    #[must_use]
    pub fn usable(&self) -> PortList {
        self.automatic.minus(&self.others())
    }
}

/// Translation's ports, as the host's automatic ports are to keep off them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedPorts {
    slices: [PortSlice; PortSlice::MAX],
    /// The first and the last port of what is not reserved of them.
    open: Option<(u16, u16)>,
}

impl SharedPorts {
    /// Leaves as much of the slices open as the host lacks of what it keeps. `usable` has the
    /// host's automatic ports, without those that others have reserved.
    #[must_use]
    pub fn new(slices: [PortSlice; PortSlice::MAX], usable: &PortList) -> Self {
        let ours = PortList::of_slices(&slices);
        let free = usable.minus(&ours).count();
        let lacking = KEPT.min(usable.count()).saturating_sub(free);
        Self {
            slices,
            open: lowest(&ours.common(usable), lacking),
        }
    }

    /// The ports that are reserved.
    #[must_use]
    pub fn reserved(&self) -> PortList {
        PortList::of_slices(&self.slices).minus(&self.open())
    }

    /// The ports that both use. Claims keep the host's flows apart from the pods'.
    #[must_use]
    pub fn open(&self) -> PortList {
        let open = PortList::new(self.open);
        open.common(&PortList::of_slices(&self.slices))
    }
}

/// The ends of a window with the lowest ports of a list, so many of them.
fn lowest(list: &PortList, count: u32) -> Option<(u16, u16)> {
    let (start, _) = *list.ranges().first()?;
    let mut left = count;
    for (first, last) in list.ranges() {
        let end = u32::from(*first) + left.checked_sub(1)?;
        if end <= u32::from(*last) {
            return Some((start, u16::try_from(end).ok()?));
        }
        left = end - u32::from(*last);
    }
    let (_, end) = *list.ranges().last()?;
    Some((start, end))
}

/// The ports of translation where no setting names them: the upper half without the fewest blocks
/// that leave to the host what it keeps, at most as many as [`PortSlice::DEFAULT`] has.
///
/// `usable` has the host's automatic ports, without those that others have reserved.
#[must_use]
pub fn choose(usable: &PortList) -> [PortSlice; PortSlice::MAX] {
    let all = PortList::new([(LEAST_PORT, u16::MAX)]);
    let below = usable.minus(&all).count();
    let lacking = KEPT.min(usable.count()).saturating_sub(below);
    let left = all.minus(&window(&usable.common(&all), lacking));
    let surplus = left.count().saturating_sub(PortSlice::DEFAULT.ports());
    let trimmed = left.minus(&PortList::new(lowest(&left, surplus)));
    cover(&trimmed)
}

/// The shortest run of blocks with so many ports of a list, the lowest of them.
fn window(list: &PortList, count: u32) -> PortList {
    if count == 0 {
        return PortList::default();
    }
    let block = |port: u16| u32::from(port) / PORTS_PER_BLOCK;
    let starts = block(LEAST_PORT)..=block(u16::MAX);
    let from = |first: u32| {
        let run = |last: u32| blocks(first, last);
        let mut lasts = first..=block(u16::MAX);
        lasts
            .find(|last| list.common(&run(*last)).count() >= count)
            .map(|last| (last - first, run(last)))
    };
    let shortest = starts.filter_map(from).min_by_key(|(length, _)| *length);
    shortest.map(|(_, run)| run).unwrap_or_default()
}

/// The ports of the blocks from one to another.
fn blocks(first: u32, last: u32) -> PortList {
    let first = u16::try_from(first * PORTS_PER_BLOCK).ok();
    let last = u16::try_from((last + 1) * PORTS_PER_BLOCK - 1).ok();
    PortList::new(first.zip(last))
}

/// The slices that have all ports of a list, and as few others as four slices can.
#[must_use]
pub fn cover(list: &PortList) -> [PortSlice; PortSlice::MAX] {
    let block = |port: u16| u32::from(port) / PORTS_PER_BLOCK;
    let whole = list.ranges().iter();
    let whole =
        whole.flat_map(|(first, last)| blocks(block(*first), block(*last)).ranges().to_vec());
    let mut ranges = PortList::new(whole).ranges().to_vec();
    while ranges.len() > PortSlice::MAX {
        let gap = |pair: &&[(u16, u16)]| match pair {
            [(_, end), (start, _)] => start.saturating_sub(*end),
            _ => u16::MAX,
        };
        let gaps = ranges.windows(2);
        let Some([(_, end), (start, _)]) = gaps.min_by_key(gap) else {
            break;
        };
        let filled = (*end, *start);
        ranges.push(filled);
        ranges = PortList::new(ranges).ranges().to_vec();
    }
    let mut slices = NO_SLICES;
    let found = ranges.iter().filter_map(|(a, b)| PortSlice::new(*a, *b));
    for (slot, slice) in slices.iter_mut().zip(found) {
        *slot = slice;
    }
    slices
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn list(text: &str) -> PortList {
        text.parse().unwrap()
    }

    fn chosen(usable: &str) -> String {
        PortList::of_slices(&choose(&list(usable))).to_string()
    }

    #[test]
    fn translation_takes_what_the_host_can_do_without() {
        for (usable, ports) in [
            ("32768-60999", "40960-65535"),
            ("32768-65535", "40960-65535"),
            ("1024-65535", "40960-65535"),
            ("15000-65000", "40960-65535"),
            ("10000-20000", "40960-65535"),
            ("49152-65535", "32768-49151,57344-65535"),
            ("40000-65000", "32768-40447,48640-65535"),
            ("60000-60999", "39424-59903,61440-65535"),
            ("57344-65535", "32768-57343"),
            ("57345-65535", "32768-57343"),
            ("57000-65500", "32768-56831"),
            ("32768-33000,50000-65535", "32768-50175,58368-65535"),
            ("", "40960-65535"),
        ] {
            assert_eq!(chosen(usable), ports, "{usable}");
        }
    }

    fn usable() -> impl Strategy<Value = PortList> {
        let port = 1024..=u16::MAX;
        let range = (port.clone(), port.clone()).prop_map(|(a, b)| (a.min(b), a.max(b)));
        let others = prop::collection::vec((port, 0..3000_u16), 0..6);
        (range, others).prop_map(|(range, others)| {
            let others = others.into_iter().map(|(a, n)| (a, a.saturating_add(n)));
            PortList::new([range]).minus(&PortList::new(others))
        })
    }

    fn slices() -> impl Strategy<Value = [PortSlice; PortSlice::MAX]> {
        let block = 2..128_u32;
        prop::collection::vec((block, 0..60_u32), 1..4).prop_map(|runs| {
            let runs = runs.into_iter().map(|(a, n)| blocks(a, (a + n).min(127)));
            cover(&runs.fold(PortList::default(), |all, run| all.union(&run)))
        })
    }

    fn keeps_its_share(usable: &PortList, set: [PortSlice; PortSlice::MAX]) {
        let kept = KEPT.min(usable.count());
        let shared = SharedPorts::new(set, usable);
        assert!(usable.minus(&shared.reserved()).count() >= kept);
        assert!(shared.open().common(usable).count() <= kept);
        let ours = PortList::of_slices(&set);
        assert_eq!(shared.open().union(&shared.reserved()), ours);
    }

    #[test]
    fn ports_are_counted_across_a_hole_in_the_range() {
        let set = cover(&blocks(11, 60));
        keeps_its_share(&list("21314,21316-31182"), set);
    }

    proptest! {
        #[test]
        fn the_host_keeps_its_share_of_any_range(usable in usable(), set in slices()) {
            keeps_its_share(&usable, set);
        }

        #[test]
        fn chosen_ports_are_enough_and_leave_nothing_open(usable in usable()) {
            let slices = choose(&usable);
            let ours = PortList::of_slices(&slices);
            prop_assert!(ours.ranges().iter().all(|(first, _)| *first >= LEAST_PORT));
            prop_assert!(SharedPorts::new(slices, &usable).open().is_empty());
            prop_assert!(ours.count() <= PortSlice::DEFAULT.ports());
        }

        #[test]
        fn one_range_leaves_all_ports_but_the_edges(a in 1024..=u16::MAX, b in 1024..=u16::MAX) {
            let usable = PortList::new([(a.min(b), a.max(b))]);
            let ours = PortList::of_slices(&choose(&usable));
            let edges = 2 * PORTS_PER_BLOCK;
            prop_assert!(ours.count() >= PortSlice::DEFAULT.ports() - edges, "{ours}");
        }

        #[test]
        fn slices_cover_what_they_are_made_of(list in usable()) {
            let all = PortList::of_slices(&cover(&list));
            prop_assert!(all.contains(&list));
        }
    }
}
