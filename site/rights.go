package site

import "github.com/forgeyard/forgeyard-node"

// Right is what a member must be to propose a command of its own (§3). The leader's
// controllers, the uplink and what changes the site itself are for members that may
// vote, which also pass on what others ask; a runner that never votes speaks for itself
// alone.
type Right uint8

// Rights.
const (
	// AnyMember may propose it: the work and the devices of the site are there to be used.
	AnyMember Right = iota + 1
	// Itself: the runner that the command speaks for.
	Itself
	// MayVote: only a member that may lead.
	MayVote
)

// RightOf says what is needed to propose a command, and for Itself of whom it speaks.
func (s *State) RightOf(b Body) (Right, forgeyard.RunnerID) {
	switch b := b.(type) {
	case Submit, Cancel, Resume, DeviceLease, DeviceRelease:
		return AnyMember, ""
	case Register:
		return Itself, b.Runner
	case Accept:
		return Itself, b.Authority.Runner
	case Reject:
		return Itself, b.Authority.Runner
	case Phase:
		return Itself, b.Authority.Runner
	case Checkpoint:
		return Itself, b.Authority.Runner
	case Release:
		return Itself, b.Authority.Runner
	case Complete:
		return Itself, b.Authority.Runner
	case Stopped:
		return Itself, b.Authority.Runner
	case DeviceReset:
		return Itself, b.Host
	case DeviceHealth:
		if d, ok := s.Devices.Get(b.Device); ok && b.Action == "checked" {
			return Itself, d.Host
		}
		return AnyMember, ""
	case MemberSet:
		if b.Disabled == nil && b.Removed == nil && b.Spare == nil {
			return Itself, b.Runner // draining oneself
		}
	}
	return MayVote, ""
}

// Admits says why the member may not propose the command, or nil.
func (s *State) Admits(who forgeyard.RunnerID, b Body) error {
	right, of := s.RightOf(b)
	m, ok := s.Members.Get(who)
	switch {
	case ok && m.Removed:
		return forgeyard.Errorf("propose", forgeyard.Denied, "%s was removed from the site", m.Name)
	case right == AnyMember, right == Itself && of == who:
		return nil
	case ok && m.MayVote:
		return nil
	case right == Itself:
		return forgeyard.Errorf("propose", forgeyard.Denied, "%s may not speak for runner %s", who, of)
	}
	return forgeyard.Errorf("propose", forgeyard.Denied, "%T is for members that may vote, and %s may not", b, who).WithHint("run it on a voter: forgeyard-node site members")
}
