package site

import (
	"fmt"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
)

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

// AuthorityOf is the authority that a runner's command is made under, and whether it is
// such a command.
func AuthorityOf(b Body) (a forgeyard.Authority, ok bool) {
	switch b := b.(type) {
	case Accept:
		a = b.Authority
	case Reject:
		a = b.Authority
	case Phase:
		a = b.Authority
	case Checkpoint:
		a = b.Authority
	case Release:
		a = b.Authority
	case Complete:
		a = b.Authority
	case Stopped:
		a = b.Authority
	case Report:
		a = b.Authority
	case StopRefused:
		a = b.Authority
	case EffectIntent:
		a = b.Authority
	case EffectOutcome:
		a = b.Authority
	case StepCommit:
		a = b.Authority
	case Stopping:
		a = b.Authority
	case Mark:
		a = b.Authority
	case Restored:
		a = b.Authority
	default:
		return a, false
	}
	return a, true
}

// RightOf says what is needed to propose a command, and for Itself of whom it speaks.
func (s *State) RightOf(b Body) (Right, forgeyard.RunnerID) {
	if a, ok := AuthorityOf(b); ok {
		return Itself, a.Runner
	}
	switch b := b.(type) {
	case Submit:
		if b.Via != "" {
			return Itself, b.Via
		}
		return AnyMember, ""
	case Cancel:
		if s.takesMore(b) {
			return MayVote, ""
		}
		return AnyMember, ""
	case Ask, Resume, RunSuspend, RunResume, EffectResolve, CheckpointLetGo, DeviceLease, DeviceRelease, Unname:
		return AnyMember, ""
	case Register:
		return Itself, b.Runner
	case DeviceReset:
		return Itself, b.Host
	case DeviceHealth:
		if d, ok := s.Devices.Get(b.Device); ok && b.Action == "checked" {
			return Itself, d.Host
		}
		return AnyMember, ""
	case Preempt:
		return Itself, b.Runner
	case MemberSet:
		if b.Disabled == nil && b.Removed == nil && b.Spare == nil && b.Assign == nil && !b.Approved {
			return Itself, b.Runner // draining oneself
		}
	}
	return MayVote, ""
}

// takesMore reports a cancellation that does more than end work: by force it may leave half an
// effect that is protected, and for security it withdraws what others go on from.
func (s *State) takesMore(b Cancel) bool {
	if b.Reason == job.CancelSecurity {
		return true
	}
	j, ok := s.Jobs.Get(b.Job)
	return b.Force && ok && j.Spec.Effects == job.EffectsProtected
}

// named is what a command is called to whoever may not propose it.
func named(b Body) string {
	if c, ok := b.(Cancel); ok {
		if c.Reason == job.CancelSecurity {
			return "a security stop"
		}
		return "to force the end of a job with protected effects"
	}
	return fmt.Sprintf("%T", b)
}

// Admits says why the member may not propose the command, or nil.
func (s *State) Admits(who forgeyard.RunnerID, b Body) error {
	right, of := s.RightOf(b)
	m, ok := s.Members.Get(who)
	switch {
	case ok && m.Removed:
		return forgeyard.Errorf("propose", forgeyard.Denied, "%s was removed from the site", m.Name)
	case right == Itself && of == who:
		return nil
	case ok && m.Waiting: // no more than a guest: it approves nobody, itself included
		return forgeyard.Errorf("propose", forgeyard.Conflict, "%s waits for approval", m.Name).WithHint("on a voter: forgeyard-node runner approve %s", m.Name)
	case right == AnyMember:
		return nil
	case ok && m.MayVote:
		return nil
	case right == Itself:
		return forgeyard.Errorf("propose", forgeyard.Denied, "%s may not speak for runner %s", who, of)
	}
	return forgeyard.Errorf("propose", forgeyard.Denied, "%s is for members that may vote, and %s may not", named(b), who).WithHint("run it on a voter: forgeyard-node site members")
}
