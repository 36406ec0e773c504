package controllers

import (
	"fmt"
	"maps"
)

// Clone returns a memory that shares nothing with m, for those who ask what could happen
// next (simulation/explore).
func (m *Memory) Clone() *Memory {
	return &Memory{
		Elected: m.Elected, leases: maps.Clone(m.leases), runners: maps.Clone(m.runners), avoided: maps.Clone(m.avoided), devices: maps.Clone(m.devices),
		sessions: maps.Clone(m.sessions), disabled: maps.Clone(m.disabled), ready: m.ready,
		returns: maps.Clone(m.returns), claims: maps.Clone(m.claims), gap: m.gap,
	}
}

// Text writes down all that the memory holds: two memories with the same text decide
// alike. A map is printed in the order of its keys.
func (m *Memory) Text() string {
	return fmt.Sprintf("elected %d\nleases %+v\nrunners %+v\navoided %+v\ndevices %+v\nsessions %+v\ndisabled %+v\nready %d\nreturns %+v\nclaims %+v\ngap %d\n",
		m.Elected, m.leases, m.runners, m.avoided, m.devices, m.sessions, m.disabled, m.ready, m.returns, m.claims, m.gap)
}
