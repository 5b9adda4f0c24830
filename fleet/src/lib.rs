//! All nodes of an operator, as one machine of values. No I/O, no clock, no threads.
//!
//! [`Fleet`] handles [`Input`]: objects of the API server, answers of EC2, answers to writes, and
//! the standing among operators. [`Fleet::work`] returns [`Work`] to carry out: calls and reads of
//! EC2, patches, deletions and events. Each work has an id, which its answer carries. A late or
//! repeated answer has no effect.
//!
//! A node has one change in flight at EC2, and an object has one write in flight. Nothing that the
//! fleet remembers is needed after a crash: the next leader reads it from EC2 and the API server.

mod input;
mod machine;
mod member;
mod plain;
mod reads;
mod settings;
mod topology;
mod view;
mod work;
mod writes;

pub use self::input::{Input, Moment, Standing, Written};
pub use self::machine::Fleet;
pub use self::settings::{
    EniSettings, PoolSettings, RateSettings, ReadSettings, ReleaseMode, Settings,
};
pub use self::view::{
    Allowance, LeakView, NodeView, ObstacleView, PlainView, PoolView, ReleaseView, SpaceView,
    SubnetView, WhyView,
};
pub use self::work::{About, Event, Part, Task, Work, WorkId};
