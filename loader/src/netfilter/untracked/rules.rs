//! The table's messages. In the words of nft(8), for the exception bit 0x80000000:
//!
//! ```text
//! table inet towpath {
//!     chain exceptions {
//!         type filter hook prerouting priority -199; policy accept;
//!         meta mark & 0x80000000 == 0x80000000 ct state invalid notrack
//!     }
//!     chain errors {
//!         type filter hook output priority -199; policy accept;
//!         icmp type destination-unreachable ct state invalid notrack
//!         (the same for time-exceeded, parameter-problem and the four errors of ICMPv6)
//!     }
//! }
//! ```

use netlink_packet_core::{DefaultNla, NLM_F_APPEND, NLM_F_CREATE};
use netlink_packet_netfilter::nftables::{
    Bitwise, ChainAttribute, ChainMessage, Cmp, DataAttribute, ExpressionAttribute, Expressions,
    Hook, InetHookNumber, ListAttribute, Meta, MetaKey, NfTablesMessage, Operator, Payload,
    Register, RuleAttribute, RuleMessage, TableAttribute, TableMessage,
};
use netlink_packet_netfilter::{NetfilterHeader, NetfilterMessage, NetfilterProtoFamily};

/// The table's name.
pub(super) const TABLE: &str = "towpath";

/// Priority right after connection tracking (`NF_IP_PRI_CONNTRACK` in
/// `include/uapi/linux/netfilter_ipv4.h`), when the packet's state is known, and before all
/// filters.
const PRIORITY: u32 = (-200_i32 + 1).cast_unsigned();

/// `NF_ACCEPT` in include/uapi/linux/netfilter.h.
const ACCEPT: u32 = 1;

/// `NFT_PAYLOAD_TRANSPORT_HEADER` in `include/uapi/linux/netfilter/nf_tables.h`.
const TRANSPORT_HEADER: u32 = 2;

/// `NFTA_CT_DREG`, `NFTA_CT_KEY` and `NFT_CT_STATE` in `include/uapi/linux/netfilter/nf_tables.h`.
const CT_DREG: u16 = 1;
const CT_KEY: u16 = 2;
const CT_STATE: u32 = 0;

/// `NF_CT_STATE_INVALID_BIT` in `include/uapi/linux/netfilter/nf_conntrack_common.h`.
const STATE_INVALID: u32 = 1;

/// The comment of a rule among its user data (`NFTNL_UDATA_RULE_COMMENT` of libnftnl), as nft shows it.
const COMMENT: u8 = 0;

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// The errors of both protocols by their types (RFC 792; RFC 4443, 3).
const ERRORS: [(u8, &str, &[u8]); 2] = [
    (ICMP, "icmp", &[3, 11, 12]),
    (ICMPV6, "icmpv6", &[1, 2, 3, 4]),
];

/// One rule: its chain, and the comment by which it is known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Known {
    pub(super) chain: String,
    pub(super) user_data: Vec<u8>,
}

struct Rule {
    chain: &'static str,
    comment: String,
    expressions: Vec<Expressions>,
}

impl Rule {
    fn known(&self) -> Known {
        let text = self.comment.as_bytes();
        let length = u8::try_from(text.len() + 1).unwrap_or(u8::MAX);
        let user_data = [&[COMMENT, length], text, &[0]].concat();
        Known {
            chain: self.chain.to_owned(),
            user_data,
        }
    }
}

/// The rules that the table is to have.
pub(super) fn known(exception: u32) -> Vec<Known> {
    rules(exception).iter().map(Rule::known).collect()
}

/// The messages that put the whole table in the place of what is there, in one transaction.
pub(super) fn replacement(exception: u32) -> Vec<(NetfilterMessage, u16)> {
    let table = || TableMessage {
        attributes: vec![TableAttribute::Name(TABLE.to_owned())],
    };
    // Made first, so that there is one to remove.
    let mut all = vec![
        (NfTablesMessage::NewTable(table()), NLM_F_CREATE),
        (NfTablesMessage::DeleteTable(table()), 0),
        (NfTablesMessage::NewTable(table()), NLM_F_CREATE),
    ];
    for (name, hook) in [
        ("exceptions", InetHookNumber::PreRouting),
        ("errors", InetHookNumber::LocalOut),
    ] {
        all.push((NfTablesMessage::NewChain(chain(name, hook)), NLM_F_CREATE));
    }
    for rule in rules(exception) {
        let Known { chain, user_data } = rule.known();
        let expressions = rule.expressions.into_iter().map(list_element).collect();
        let message = RuleMessage {
            attributes: vec![
                RuleAttribute::Table(TABLE.to_owned()),
                RuleAttribute::Chain(chain),
                RuleAttribute::Expressions(expressions),
                RuleAttribute::UserData(user_data),
            ],
        };
        all.push((
            NfTablesMessage::NewRule(message),
            NLM_F_CREATE | NLM_F_APPEND,
        ));
    }
    all.into_iter()
        .map(|(message, flags)| (inet(message), flags))
        .collect()
}

/// The message that removes the table.
pub(super) fn removal() -> (NetfilterMessage, u16) {
    let table = TableMessage {
        attributes: vec![TableAttribute::Name(TABLE.to_owned())],
    };
    (inet(NfTablesMessage::DeleteTable(table)), 0)
}

/// The request for the table's rules.
pub(super) fn listing() -> NetfilterMessage {
    inet(NfTablesMessage::GetRule(RuleMessage {
        attributes: vec![RuleAttribute::Table(TABLE.to_owned())],
    }))
}

/// A rule of the table, as the kernel shows it.
pub(super) fn shown(message: &NfTablesMessage) -> Option<Known> {
    let NfTablesMessage::NewRule(rule) = message else {
        return None;
    };
    let mut is_ours = false;
    let mut known = Known {
        chain: String::new(),
        user_data: Vec::new(),
    };
    for attribute in &rule.attributes {
        match attribute {
            RuleAttribute::Table(table) => is_ours = table == TABLE,
            RuleAttribute::Chain(chain) => known.chain.clone_from(chain),
            RuleAttribute::UserData(bytes) => known.user_data.clone_from(bytes),
            _ => {}
        }
    }
    is_ours.then_some(known)
}

fn inet(message: NfTablesMessage) -> NetfilterMessage {
    NetfilterMessage::new(
        NetfilterHeader::new(NetfilterProtoFamily::Inet, 0, 0),
        message,
    )
}

fn chain(name: &str, hook: InetHookNumber) -> ChainMessage {
    ChainMessage {
        attributes: vec![
            ChainAttribute::Table(TABLE.to_owned()),
            ChainAttribute::Name(name.to_owned()),
            ChainAttribute::Hook(vec![Hook::Number(hook.into()), Hook::Priority(PRIORITY)]),
            ChainAttribute::Policy(ACCEPT),
            ChainAttribute::Type("filter".to_owned()),
        ],
    }
}

fn rules(exception: u32) -> Vec<Rule> {
    let mut marked = vec![meta(MetaKey::Mark)];
    marked.extend(has_bits(exception));
    marked.extend(invalid_is_untracked());
    let mut all = vec![Rule {
        chain: "exceptions",
        comment: format!("exceptions of the direct path, mark {exception:#010x}"),
        expressions: marked,
    }];
    for (protocol, name, types) in ERRORS {
        all.extend(types.iter().map(|kind| {
            let mut expressions = vec![meta(MetaKey::L4Proto), equals(&[protocol])];
            expressions.push(Expressions::Payload(vec![
                Payload::DestinationRegister(Register::Reg1),
                Payload::Base(TRANSPORT_HEADER),
                Payload::Offset(0),
                Payload::Len(1),
            ]));
            expressions.push(equals(&[*kind]));
            expressions.extend(invalid_is_untracked());
            Rule {
                chain: "errors",
                comment: format!("what the host says of them: {name} type {kind}"),
                expressions,
            }
        }));
    }
    all
}

/// A packet that connection tracking calls INVALID is one that it does not track. One that it knows stays
/// tracked.
fn invalid_is_untracked() -> Vec<Expressions> {
    let value = |kind, value: u32| DefaultNla::new(kind, value.to_be_bytes().to_vec());
    let mut all = vec![Expressions::Other {
        expression_type: "ct".to_owned(),
        attributes: vec![
            value(CT_KEY, CT_STATE),
            value(CT_DREG, Register::Reg1.into()),
        ],
    }];
    all.extend(has_bits(STATE_INVALID));
    all.push(Expressions::Other {
        expression_type: "notrack".to_owned(),
        attributes: Vec::new(),
    });
    all
}

fn meta(key: MetaKey) -> Expressions {
    Expressions::Meta(vec![
        Meta::DestinationRegister(Register::Reg1),
        Meta::Key(key),
    ])
}

/// True if the register, which is in the machine's byte order, has all of these bits.
fn has_bits(bits: u32) -> [Expressions; 2] {
    let of = |value: u32| DataAttribute::Value(value.to_ne_bytes().to_vec());
    let mask = Expressions::Bitwise(vec![
        Bitwise::SourceRegister(Register::Reg1),
        Bitwise::DestinationRegister(Register::Reg1),
        Bitwise::Length(4),
        Bitwise::Mask(of(bits)),
        Bitwise::Xor(of(0)),
    ]);
    [mask, equals(&bits.to_ne_bytes())]
}

fn equals(bytes: &[u8]) -> Expressions {
    Expressions::Cmp(vec![
        Cmp::SourceRegister(Register::Reg1),
        Cmp::Op(Operator::Equal),
        Cmp::Data(DataAttribute::Value(bytes.to_vec())),
    ])
}

fn list_element(expression: Expressions) -> ListAttribute<ExpressionAttribute> {
    expression.into()
}
