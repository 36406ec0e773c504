package devices

import (
	"fmt"
	"strings"
	"time"

	"github.com/forgeyard/forgeyard-node"
)

// Grantable says why the device cannot be granted now, or "".
func (d Device) Grantable() string {
	switch {
	case d.Quarantine != nil:
		return "in quarantine: " + d.Quarantine.Reason
	case d.Use == Preparing || d.Use == Leased:
		return "leased to " + d.Lease.Holder.String()
	case d.Use == Cleaning:
		return "being cleaned"
	case d.Presence != Present:
		return string(d.Presence) + because(d.Reason)
	case d.Health != Good:
		return "health is " + string(d.Health) + because(d.Reason)
	case d.Dirty:
		return "not cleaned since its last lease"
	}
	return ""
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

func (h Holder) String() string {
	if h.Person != "" {
		return h.Person
	}
	return fmt.Sprintf("job %s, epoch %d", h.Job, h.Epoch)
}

func (h Holder) check() error {
	byJob := h.Job != "" && h.Attempt != "" && h.Epoch > 0
	if byJob == (h.Person != "") || len(h.Person) > MaxReason {
		return forgeyard.Errorf("lease device", forgeyard.Invalid, "the holder is either a job with attempt and epoch, or a person")
	}
	return nil
}

// Grant asks for a lease.
type Grant struct {
	Index     uint64         // number of the command: becomes the token
	At        forgeyard.Wall // for people
	Lease     forgeyard.DeviceLeaseID
	RequestID forgeyard.MessageID // the same id is the same lease
	Holder    Holder
	Origin    Origin
	TTL       time.Duration
	Prepare   bool  // the device must be prepared before the holder gets it
	DriftPPM  int64 // see Lease
}

// Grant gives the device to a holder. Asking again with the same request id
// returns the lease that it was given, which may have ended meanwhile, and changes
// nothing. Kinds: Invalid, Conflict with the reason, Stale for an index that is not
// above every earlier token.
func (d Device) Grant(g Grant) (Device, Lease, error) {
	if l, ok := d.byRequest(g.RequestID); ok {
		return d, l, nil
	}
	if err := g.check(); err != nil {
		return d, Lease{}, err
	}
	if why := d.Grantable(); why != "" {
		return d, Lease{}, forgeyard.Errorf("lease device", forgeyard.Conflict, "%s cannot be leased: %s", d.ID, why)
	}
	if g.Index <= d.HighestFence {
		return d, Lease{}, forgeyard.Errorf("lease device", forgeyard.Stale, "token %d for %s is not above %d", g.Index, d.ID, d.HighestFence)
	}
	l := Lease{
		ID: g.Lease, Device: d.ID, Token: g.Index, Holder: g.Holder, Origin: g.Origin,
		RequestID: g.RequestID, TTL: g.TTL, GrantedAt: g.At, DriftPPM: g.DriftPPM,
	}
	d.Lease, d.HighestFence, d.Dirty, d.Resets, d.Cleaned = &l, g.Index, true, 0, nil
	if d.Use = Leased; g.Prepare {
		d.Use = Preparing
	}
	return d, l, nil
}

func (d Device) byRequest(id forgeyard.MessageID) (Lease, bool) {
	for _, l := range []*Lease{d.Lease, d.Last} {
		if l != nil && id != "" && l.RequestID == id {
			return *l, true
		}
	}
	return Lease{}, false
}

func (g Grant) check() error {
	bad := ""
	switch {
	case g.Index == 0:
		bad = "a token is the number of a command and never 0"
	case g.RequestID == "" || len(g.RequestID) > MaxReason:
		bad = "a request id is needed, of at most 256 bytes"
	case g.Lease == "":
		bad = "a lease id is needed"
	case g.TTL <= 0 || g.TTL > MaxTTL:
		bad = fmt.Sprintf("ttl %v is not in (0s, %v]", g.TTL, MaxTTL)
	case g.Origin != Local && g.Origin != Central:
		bad = fmt.Sprintf("origin %q; allowed: local, central", g.Origin)
	default:
		return g.Holder.check()
	}
	return forgeyard.Errorf("lease device", forgeyard.Invalid, "%s", bad)
}

// GrantAll grants several devices in one log entry, or none of them (D05): all
// parts of a composite and all devices of a gang. The grants are for the devices of
// the same place, and share an index.
func GrantAll(ds []Device, gs []Grant) ([]Device, []Lease, error) {
	if len(ds) != len(gs) || len(ds) > MaxGang {
		return nil, nil, forgeyard.Errorf("lease devices", forgeyard.Invalid, "%d grants for %d devices; at most %d in one entry", len(gs), len(ds), MaxGang)
	}
	out, leases := make([]Device, len(ds)), make([]Lease, len(ds))
	for i := range ds {
		for j := range i {
			if ds[i].ID == ds[j].ID {
				return nil, nil, forgeyard.Errorf("lease devices", forgeyard.Invalid, "%s is asked for twice", ds[i].ID)
			}
		}
		var err error
		if out[i], leases[i], err = ds[i].Grant(gs[i]); err != nil {
			return nil, nil, err
		}
	}
	return out, leases, nil
}

// Admit says whether an act under the token may touch the device now: only the
// current lease may (stale-never-commits). The kind is Stale.
func (d Device) Admit(token uint64) error {
	if d.Lease != nil && d.Lease.Token == token && token != 0 {
		return nil
	}
	return d.stale("use device", token)
}

func (d Device) stale(op string, token uint64) error {
	now := "it is not leased"
	if d.Lease != nil {
		now = fmt.Sprintf("the current one is %d", d.Lease.Token)
	}
	return forgeyard.Errorf(op, forgeyard.Stale, "token %d is no longer valid for %s: %s", token, d.ID, now)
}

// End is how a lease ends.
type End struct {
	Index  uint64
	At     forgeyard.Wall
	Reason EndReason
	By     string // the person, for Forced; needed there
}

// End ends the lease that has the token: by release, expiry, force or its
// holder's end. The device must then be cleaned. Ending it again changes nothing.
// Kinds: Stale when another lease holds the device, NotFound when there never was
// such a lease, Invalid.
func (d Device) End(token uint64, e End) (Device, error) {
	if (e.Reason == Forced) == (e.By == "") {
		return d, forgeyard.Errorf("release device", forgeyard.Invalid, "a forced end names the person, and only that one; by %q, reason %q", e.By, e.Reason)
	}
	switch {
	case d.Lease != nil && d.Lease.Token == token:
		l := *d.Lease
		l.Ended, l.EndedAt, l.EndReason, l.EndedBy = e.Index, e.At, e.Reason, e.By
		d.Last, d.Lease, d.Use, d.Resets = &l, nil, Cleaning, 0
		return d, nil
	case d.Last != nil && d.Last.Token == token:
		return d, nil
	case token == 0 || token > d.HighestFence:
		return d, forgeyard.Errorf("release device", forgeyard.NotFound, "%s was never leased under token %d", d.ID, token)
	}
	return d, d.stale("release device", token)
}

// HoldersUnknown says that a part of the log is lost: somebody may have had the device last
// whom this state does not name. It is cleaned before anybody gets it, under the number of
// the command that says so, which is above every token that was ever given out, so that
// the host's gate is closed to all of them. No lease may live. A device in quarantine is
// cleaned when that is lifted.
func (d Device) HoldersUnknown(index uint64, at forgeyard.Wall, by string) Device {
	l := Lease{Device: d.ID, Origin: Local, GrantedAt: at, Ended: index, EndedAt: at, EndReason: Forced, EndedBy: by}
	if d.Last != nil {
		l = *d.Last
	}
	l.Token = index
	d.Last, d.HighestFence, d.Dirty, d.Resets = &l, max(d.HighestFence, index), true, 0
	if d.Quarantine == nil {
		d.Use = Cleaning
	}
	return d
}

// Prepared tells how the preparation of the lease ended. A failure ends the lease.
func (d Device) Prepared(token uint64, ok bool, why string, e End) (Device, error) {
	if d.Lease == nil || d.Lease.Token != token {
		if d.Last != nil && d.Last.Token == token {
			return d, nil
		}
		return d, d.stale("prepare device", token)
	}
	if d.Use != Preparing {
		return d, nil // told before
	}
	if ok {
		d.Use, d.PrepareFailures = Leased, 0
		return d, nil
	}
	e.Reason, e.By = PrepareFailed, ""
	d, err := d.End(token, e)
	if err != nil {
		return d, err
	}
	d = d.doubt("it could not be prepared: %s", why)
	if d.PrepareFailures++; d.PrepareFailures >= MaxPrepareFails {
		d.PrepareFailures = MaxPrepareFails
		d = d.quarantineBySite(fmt.Sprintf("%d preparations in a row failed, the last: %s", MaxPrepareFails, why), e.Index, e.At)
	}
	return d, nil
}

// ResetDone tells how a reset of the device ended, after the lease that the
// evidence names. Success returns the device to the pool; the second failure puts
// it into quarantine. A report that is repeated, or that comes after a later one,
// changes nothing. That a reset's deadline passed, or that its host stayed away,
// is told as a failure. The kind is Stale when another lease came since.
func (d Device) ResetDone(e Evidence, index uint64, at forgeyard.Wall) (Device, error) {
	if d.Last == nil || e.Token != d.Last.Token || d.Lease != nil {
		return d, d.stale("reset device", e.Token)
	}
	if d.Use != Cleaning || e.Try <= d.Resets {
		return d, nil
	}
	e = e.bounded()
	d.Cleaned = &e
	if e.OK {
		d.Use, d.Dirty, d.Resets = Free, false, 0
		return d, nil
	}
	if d.Resets = e.Try; d.Resets < MaxResets {
		return d, nil
	}
	d.Use, d.Resets = Free, 0
	return d.quarantineBySite("cleaning failed: "+orUnsaid(e.Error), index, at), nil
}

func (e Evidence) bounded() Evidence {
	e.Steps = append([]Step(nil), e.Steps[:min(len(e.Steps), MaxSteps)]...)
	for i := range e.Steps {
		e.Steps[i].Detail = clip(e.Steps[i].Detail, MaxDetail)
	}
	e.Error = clip(e.Error, MaxReason)
	return e
}

// clip cuts at a whole rune and replaces what is not UTF-8: the log holds text.
func clip(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n-len("…")], "") + "…"
}

func orUnsaid(why string) string {
	if why == "" {
		return "no reason was given"
	}
	return why
}
