//! The programs run in this process, one packet at a time, to count what they execute: times differ from
//! run to run and from machine to machine, instructions do not.
//!
//! It is no verifier: it takes programs that the kernel takes, and fails where they do what it does not
//! know. That it makes of packets what the kernel makes of them is tested.

mod arithmetic;
mod cost;
mod dead;
mod helper;
mod instruction;
mod lines;
mod map;
mod memory;
mod program;
mod run;
mod skb;

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::{Context as _, Result, bail};
use datapath_common::abi::{Addr, AddressEntry, DestinationClass, EniEntry, map as name};
use datapath_common::counter::Program;
use ipnet::IpNet;
use towpath::bpf::DatapathSettings;
use zerocopy::{Immutable, IntoBytes};

pub use cost::Cost;
pub use lines::Origin;

use crate::testrun::{self, Input, Output};
use helper::Host;
use memory::Memory;
use program::Image;

/// The programs, their maps, and what helpers know.
#[derive(Debug)]
pub struct Machine {
    image: Image,
    host: Host,
    devices: BTreeMap<u32, [u8; 6]>,
}

impl Machine {
    /// The programs as an agent with these settings gives them to the kernel, with empty maps.
    ///
    /// # Errors
    /// Without root: the kernel tells what the loader makes of the settings. When the object has what the
    /// interpreter does not know.
    pub fn new(settings: &DatapathSettings) -> Result<Self> {
        let read_only = testrun::read_only::data(settings)?;
        Ok(Self {
            image: Image::new(towpath::bpf::OBJECT, &read_only)?,
            host: Host {
                // Far enough from 0 for anything to be long ago.
                jiffies: 1 << 32,
                random: 1,
            },
            devices: BTreeMap::new(),
        })
    }

    /// Says which MAC a device has: it tells whether a packet is for the host.
    pub fn put_device(&mut self, ifindex: u32, mac: [u8; 6]) {
        self.devices.insert(ifindex, mac);
    }

    /// Writes an entry of `ADDRESSES`.
    ///
    /// # Errors
    /// When there is no room.
    pub fn put_address(&mut self, address: IpAddr, entry: AddressEntry) -> Result<()> {
        self.put(name::ADDRESSES, &Addr::from(address), &entry)
    }

    /// Writes an entry of `DESTINATIONS`.
    ///
    /// # Errors
    /// When there is no room.
    pub fn put_destination(&mut self, net: IpNet, class: DestinationClass) -> Result<()> {
        let (length, address) = Addr::prefix(net);
        let key = [&length.to_ne_bytes(), address.as_bytes()].concat();
        self.put(name::DESTINATIONS, key.as_slice(), &class)
    }

    /// Writes a slot of `ENIS`, and for a secondary one its entry of `ENI_BY_IFINDEX`.
    ///
    /// # Errors
    /// When there is no room.
    pub fn put_eni(&mut self, number: u8, entry: EniEntry) -> Result<()> {
        self.put(name::ENIS, &u32::from(number), &entry)?;
        if number != 0 && entry.ifindex() != 0 {
            self.put(
                name::ENI_BY_IFINDEX,
                &entry.ifindex(),
                &u32::from(number),
            )?;
        }
        Ok(())
    }

    fn put<K, V>(&mut self, name: &str, key: &K, value: &V) -> Result<()>
    where
        K: IntoBytes + Immutable + ?Sized,
        V: IntoBytes + Immutable,
    {
        let map = self.image.maps.iter_mut().find(|map| map.name == name);
        let map = map.with_context(|| format!("the object has no map {name}"))?;
        match map.put(key.as_bytes(), value.as_bytes(), 0) {
            Ok(()) => Ok(()),
            Err(refusal) => bail!("an entry of {name}: {refusal:?}"),
        }
    }

    /// Runs a program once.
    ///
    /// # Errors
    /// When it does what the kernel would not allow for, or what the interpreter does not know.
    pub fn run(&mut self, program: Program, input: &Input) -> Result<(Output, Cost)> {
        let mac = self.devices.get(&input.ifindex);
        let mac = mac.with_context(|| format!("there is no device {}", input.ifindex))?;
        let code = self.image.programs.get(program.name());
        let code = code.with_context(|| format!("the object has no {}", program.name()))?;
        let mut tally = cost::Tally::new(code.code.len());
        let skb = skb::Skb::new(input, *mac);
        let mut memory = Memory::new(skb, &mut self.image.maps);
        let code_returned = run::run(code, &mut memory, &mut self.host, &mut tally)
            .with_context(|| program.name())?;
        let output = Output {
            code: code_returned,
            frame: memory.skb.frame,
            mark: memory.skb.mark,
        };
        Ok((output, tally.finish(|slot| code.lines.of(slot))))
    }
}
