//! Cilium's formulas for deficit and excess.

/// Spare addresses of a node whose `pre-allocate` is unset.
pub const DEFAULT_PRE_ALLOCATE: i32 = 8;

/// The bounds of a node's addresses; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermarks {
    /// Spare addresses: [`pre_allocate`] of `spec.ipam.pre-allocate`.
    pub pre: i32,
    /// `min-allocate`: the least that the node has.
    pub min: u32,
    /// `max-allocate`: the most that the node has.
    pub max: u32,
    /// `max-above-watermark`: what is brought beyond a deficit.
    pub above: u32,
}

/// The spare addresses that a value of `spec.ipam.pre-allocate` stands for. A negative value turns
/// them off.
#[must_use]
pub fn pre_allocate(value: i32) -> i32 {
    match value {
        0 => DEFAULT_PRE_ALLOCATE,
        value => value,
    }
}

/// Addresses that are missing of a node that has `available` ones and uses `used` of them.
#[must_use]
pub fn needed(available: u32, used: u32, marks: &Watermarks) -> u32 {
    let pre = i64::from(marks.pre);
    let (available, used) = (i64::from(available), i64::from(used));
    let (min, max) = (i64::from(marks.min), i64::from(marks.max));
    let mut needed = (pre + used - available).max(min - available);
    if max > 0 && available + needed > max {
        needed = max - available;
    }
    u32::try_from(needed.max(0)).unwrap_or(u32::MAX)
}

/// Addresses beyond the watermarks.
#[must_use]
pub fn excess(available: u32, used: u32, marks: &Watermarks) -> u32 {
    let (available, used, pre) = (i64::from(available), i64::from(used), i64::from(marks.pre));
    let upper = i64::from(marks.min) + i64::from(marks.above);
    let excess = if used <= upper && available <= upper {
        0
    } else if used <= upper && used + pre <= upper {
        available - upper
    } else {
        available - used - pre - i64::from(marks.above)
    };
    u32::try_from(excess.max(0)).unwrap_or(u32::MAX)
}
