//! Notes of the places of flows, compared with the existing flows.

use std::collections::HashMap;

use anyhow::Result;
use datapath_common::abi::{FlowKey, PodTuple, TransportAddr};
use ipam::Family;

use crate::tables::Tables;

/// Notes without a flow at the last sweep, with the ENI and the port.
#[derive(Debug, Default)]
pub(super) struct Moves {
    v4: HashMap<PodTuple, (u8, u16)>,
    v6: HashMap<PodTuple, (u8, u16)>,
}

impl Moves {
    /// Removes the notes that lead nowhere now and led nowhere at the last sweep. A flow that comes
    /// or goes during a look-up can cause that once. Returns true if some notes may be removed at
    /// the next sweep.
    pub(crate) fn clean(&mut self, tables: &impl Tables, family: Family) -> Result<bool> {
        let mut noted = Vec::new();
        tables.moved(family, &mut |tuple, moved| {
            noted.push((*tuple, (moved.eni, moved.port)));
        })?;
        let before = match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        };
        let mut astray = HashMap::new();
        for (tuple, (eni, port)) in noted {
            let key = FlowKey::new(
                eni,
                tuple.protocol,
                TransportAddr::new(tuple.remote, tuple.remote_port),
                port,
            );
            let flow = tables.flow(family, &key)?;
            let leads = flow.is_some_and(|f| f.pod == tuple.pod && f.pod_port == tuple.pod_port);
            if leads {
                continue;
            }
            if before.get(&tuple) == Some(&(eni, port)) {
                tables.forget_moved(family, &tuple)?;
            } else {
                astray.insert(tuple, (eni, port));
            }
        }
        *before = astray;
        Ok(!before.is_empty())
    }
}
