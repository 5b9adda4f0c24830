use std::collections::{BTreeMap, BTreeSet};

use super::{Cost, Function, Object, calls, stack};

/// An instruction: opcode, destination and source, displacement, immediate.
fn slot(opcode: u8, registers: [u8; 2], displacement: i16, immediate: i32) -> Vec<u8> {
    let [destination, source] = registers;
    let mut bytes = vec![opcode, source << 4 | destination];
    bytes.extend(displacement.to_le_bytes());
    bytes.extend(immediate.to_le_bytes());
    bytes
}

fn function(name: &str, program: bool, stack: u64, calls: &[(usize, u64)]) -> Function {
    Function {
        name: name.to_owned(),
        program,
        slots: 10,
        stack,
        calls: calls.iter().copied().collect(),
    }
}

#[test]
fn a_local_call_counts_from_the_next_slot() {
    let mut code = slot(0xb7, [0, 0], 0, 0);
    code.extend(slot(0x85, [0, 1], 0, 3));
    let found = calls(&code, 2, 80, &BTreeMap::new());
    assert_eq!(found, BTreeSet::from([(2, 88 + 32)]));
}

#[test]
fn a_relocated_call_counts_from_its_symbol() {
    let code = slot(0x85, [0, 1], 0, -1);
    let relocated = BTreeMap::from([(0, (7, 64))]);
    assert_eq!(calls(&code, 2, 0, &relocated), BTreeSet::from([(7, 64)]));
}

#[test]
fn a_helper_call_is_no_call_of_a_function() {
    let code = slot(0x85, [0, 0], 0, 1);
    assert!(calls(&code, 2, 0, &BTreeMap::new()).is_empty());
}

#[test]
fn the_stack_is_the_deepest_displacement_from_the_frame() {
    // *(u64 *)(r10 - 16) = r1; r2 = r10; r2 += -40; r3 = *(u64 *)(r4 - 200)
    let mut code = slot(0x7b, [10, 1], -16, 0);
    assert_eq!(stack(&code), 16);
    code.extend(slot(0xbf, [2, 10], 0, 0));
    code.extend(slot(0xb7, [5, 0], 0, 1));
    code.extend(slot(0x07, [2, 0], 0, -40));
    code.extend(slot(0x79, [3, 4], -200, 0));
    assert_eq!(stack(&code), 40);
    // r2 = 7; r2 += -300
    code.extend(slot(0xb7, [2, 0], 0, 7));
    code.extend(slot(0x07, [2, 0], 0, -300));
    assert_eq!(stack(&code), 40);
}

#[test]
fn costs_follow_the_calls() {
    let object = Object {
        functions: BTreeMap::from([
            ((1, 0), function("memcpy", false, 8, &[])),
            ((1, 80), function("helper", false, 100, &[(1, 0)])),
            (
                (2, 0),
                function("from_endpoint", true, 200, &[(1, 80), (1, 0)]),
            ),
            ((2, 80), function("from_network", true, 64, &[])),
        ]),
    };
    assert_eq!(
        object.costs(),
        [
            Cost {
                name: "from_endpoint".to_owned(),
                instructions: 30,
                stack: 384
            },
            Cost {
                name: "from_network".to_owned(),
                instructions: 10,
                stack: 64
            },
        ]
    );
    assert_eq!(
        object.memory_routine_calls(),
        ["helper -> memcpy", "from_endpoint -> memcpy"]
    );
}

#[test]
fn a_stack_that_is_too_deep_is_named() {
    let of = |stack| Object {
        functions: BTreeMap::from([
            ((1, 0), function("helper", false, 200, &[])),
            ((2, 0), function("from_network", true, stack, &[(1, 0)])),
        ]),
    };
    assert!(of(224).too_deep().is_empty());
    // Each function's is counted in steps of 32.
    let deep = of(225).too_deep();
    assert_eq!(deep, ["from_network takes 480 of 448 bytes of stack"]);
}

#[test]
fn a_routine_that_no_program_reaches_is_no_finding() {
    let object = Object {
        functions: BTreeMap::from([
            ((1, 0), function("memcpy", false, 8, &[])),
            ((1, 80), function("memmove", false, 8, &[(1, 0)])),
            ((2, 0), function("from_endpoint", true, 0, &[])),
        ]),
    };
    assert!(object.memory_routine_calls().is_empty());
}
