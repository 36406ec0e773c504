// Package devices decides which holder may use which device, and when a device
// may be used again.
//
// A device's state has three axes, never one flag:
//
//	presence  present · absent · flapping
//	health    good · unknown · bad · maintenance · retired
//	use       free → preparing → leased → cleaning → free
//
//	event              presence   health            use
//	declare, new       present    unknown           free
//	host lost          absent     good → unknown    stays: a lease ends by its own rules
//	host back          present¹   unknown           stays
//	host restarted     stays      good → unknown    stays
//	check ok / failed  stays      good / bad²       stays
//	grant              present    good              free → leased, or preparing
//	prepared           stays      stays             preparing → leased
//	prepare failed     stays      unknown, bad³     preparing → cleaning
//	release, expire,   stays      stays             preparing, leased → cleaning
//	  force
//	reset ok           stays      stays             cleaning → free
//	reset failed       stays      bad at the 2nd²   cleaning, then free and quarantined
//	quarantine         stays      bad if automatic  stays: it takes effect when the lease ends
//	clear              stays      bad → unknown     free → cleaning if the last holder's traces are there
//
//	¹ flapping once it has come back MaxFlaps times without having been quiet
//	² and quarantined   ³ quarantined at the third time in a row (D17)
//
// A device is granted only if it is present, good, free, clean and not in
// quarantine. Unknown means that a health check must pass first.
//
// Invariants:
//   - Lease is set if and only if Use is preparing or leased (device-single-holder);
//   - a lease's token is the number of the command that granted it, and strictly rises per device;
//   - a request id names one lease: granting it again grants nothing new (D03);
//   - a device whose last holder's traces were not cleaned is never granted (RA-395);
//   - every path ends free or quarantined with a reason (D08);
//   - a person's quarantine is lifted by a person only (D16).
//
// Time enters as facts: that a lease has expired, that a reset's deadline has
// passed, that a device was quiet for long enough. The package is pure. It opens
// no device and cleans none: package devices/supervisor does, on the hosting node.
package devices

import (
	"maps"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/job"
)

// Presence says whether the host sees the device.
type Presence string

// Presences. Append only.
const (
	Present  Presence = "present"
	Absent   Presence = "absent"
	Flapping Presence = "flapping"
)

// Health says whether the device is fit for work.
type Health string

// Healths. Append only.
const (
	Good        Health = "good"
	Unknown     Health = "unknown"
	Bad         Health = "bad"
	Maintenance Health = "maintenance"
	Retired     Health = "retired"
)

// Use says who the device is busy with.
type Use string

// Uses. Append only.
const (
	Free      Use = "free"
	Preparing Use = "preparing"
	Leased    Use = "leased"
	Cleaning  Use = "cleaning"
)

// Device is one device of the site. It is a value: rules return a changed copy,
// and nothing it points to is ever written again.
type Device struct {
	ID     forgeyard.DeviceID `cbor:"1,keyasint"`
	Host   forgeyard.RunnerID `cbor:"2,keyasint"`
	Kind   string             `cbor:"3,keyasint"`
	Labels map[string]string  `cbor:"4,keyasint,omitempty"`
	Serial string             `cbor:"5,keyasint,omitempty"`

	Presence Presence `cbor:"6,keyasint"`
	Health   Health   `cbor:"7,keyasint"`
	Use      Use      `cbor:"8,keyasint"`
	// Reason says in words why the device is not present or not good; empty otherwise.
	Reason string `cbor:"9,keyasint,omitempty"`

	// Lease is the current one: set if and only if Use is preparing or leased.
	Lease *Lease `cbor:"10,keyasint,omitempty"`
	// Last is the lease that ended last; its token is the one that cleaning goes under.
	Last *Lease `cbor:"11,keyasint,omitempty"`
	// HighestFence is the highest token ever granted; it never falls.
	HighestFence uint64 `cbor:"12,keyasint,omitempty"`
	// Dirty is set by a grant and cleared by a reset that succeeded.
	Dirty bool `cbor:"13,keyasint,omitempty"`
	// Resets counts the resets that failed since the last lease ended.
	Resets int `cbor:"14,keyasint,omitempty"`
	// Cleaned is the evidence of the last reset, whichever way it ended.
	Cleaned *Evidence `cbor:"15,keyasint,omitempty"`
	// Quarantine keeps the device out of the pool until it is lifted.
	Quarantine *Quarantine `cbor:"16,keyasint,omitempty"`
	// Flaps counts returns since the device was last quiet.
	Flaps int `cbor:"17,keyasint,omitempty"`
	// PrepareFailures counts failed preparations in a row (D17).
	PrepareFailures int `cbor:"18,keyasint,omitempty"`
}

// Holder is who a lease is for: a job's epoch, or a person.
type Holder struct {
	Job     forgeyard.JobID     `cbor:"1,keyasint,omitempty"`
	Attempt forgeyard.AttemptID `cbor:"2,keyasint,omitempty"`
	Epoch   uint64              `cbor:"3,keyasint,omitempty"`
	Person  string              `cbor:"4,keyasint,omitempty"`
}

// Origin says who asked for the lease. Append only.
type Origin string

// Origins.
const (
	Local   Origin = "local"
	Central Origin = "central"
)

// EndReason says why a lease ended. Append only.
type EndReason string

// End reasons.
const (
	Released      EndReason = "released"       // the holder gave it back
	Expired       EndReason = "expired"        // no heartbeat of its holder for the ttl (D01)
	Forced        EndReason = "forced"         // a person took it away (D06)
	PrepareFailed EndReason = "prepare_failed" // the device could not be made ready
	HolderEnded   EndReason = "holder_ended"   // the job's epoch ended or was fenced
)

// Lease is one holder's right to one device.
//
// It is renewed by its holder's heartbeat and never by the device's traffic: a
// silent device is not an idle one (D02). Renewals are not in the log; that it
// expired is told as a fact.
type Lease struct {
	ID        forgeyard.DeviceLeaseID `cbor:"1,keyasint"`
	Device    forgeyard.DeviceID      `cbor:"2,keyasint"`
	Token     uint64                  `cbor:"3,keyasint"` // the number of the granting command
	Holder    Holder                  `cbor:"4,keyasint"`
	Origin    Origin                  `cbor:"5,keyasint"`
	RequestID forgeyard.MessageID     `cbor:"6,keyasint"`
	TTL       time.Duration           `cbor:"7,keyasint"`
	GrantedAt forgeyard.Wall          `cbor:"8,keyasint"`
	// Ended is the number of the command that ended it; zero while the lease lives.
	Ended     uint64         `cbor:"9,keyasint,omitempty"`
	EndedAt   forgeyard.Wall `cbor:"10,keyasint,omitempty"`
	EndReason EndReason      `cbor:"11,keyasint,omitempty"`
	EndedBy   string         `cbor:"12,keyasint,omitempty"` // the person, for a forced end
	// DriftPPM is by how many parts in a million two clocks may differ, as the site had it
	// when it granted a person's lease: a later change of that does not shorten what was
	// promised. Zero: what the site has now.
	DriftPPM int64 `cbor:"13,keyasint,omitempty"`
}

// Quarantine says why a device is out of the pool.
type Quarantine struct {
	Reason string         `cbor:"1,keyasint"` // in words; never empty (D16)
	By     string         `cbor:"2,keyasint"` // a person's name, or Site
	Since  forgeyard.Wall `cbor:"3,keyasint"`
	Index  uint64         `cbor:"4,keyasint"`
	// TriesLeft bounds automatic recovery; at zero only a person helps. Zero from the
	// start for a person's quarantine.
	TriesLeft int `cbor:"5,keyasint,omitempty"`
}

// Site is the author of an automatic quarantine.
const Site = "site"

// Manual reports whether a person set the quarantine.
func (q *Quarantine) Manual() bool { return q != nil && q.By != Site }

// Step is one step of a reset, a preparation or a check, with what was seen.
type Step struct {
	Name   string        `cbor:"1,keyasint"`
	OK     bool          `cbor:"2,keyasint"`
	Detail string        `cbor:"3,keyasint,omitempty"` // at most MaxDetail bytes
	Took   time.Duration `cbor:"4,keyasint"`
}

// Evidence is what was done to a device, and what came of it.
type Evidence struct {
	Token uint64 `cbor:"1,keyasint"` // the lease it belongs to
	Try   int    `cbor:"2,keyasint"` // from 1; makes a repeated report harmless
	OK    bool   `cbor:"3,keyasint"`
	Steps []Step `cbor:"4,keyasint,omitempty"`
	Error string `cbor:"5,keyasint,omitempty"` // empty when OK
}

// Identity is what a device was found to be, re-read each time.
type Identity struct {
	Path   string // where it was found, links resolved
	Serial string // what the hardware says; empty where it says nothing
	Node   uint64 // the device number behind Path
}

// Same reports whether two readings are of one device: the serial decides where
// both have one, else the place does.
func (i Identity) Same(o Identity) bool {
	if i.Serial != "" || o.Serial != "" {
		return i.Serial == o.Serial
	}
	return i.Path == o.Path && i.Node == o.Node
}

// Fact is how a host declares a device.
type Fact = job.DeviceFact

// Declare is a device's state after its host said that it is there. With no
// device yet, prev is nil. Saying the same again changes nothing. It fails with
// Conflict when another host has the device.
func Declare(prev *Device, host forgeyard.RunnerID, f Fact) (Device, error) {
	if err := checkFact(f); err != nil {
		return Device{}, err
	}
	if prev == nil {
		return Device{
			ID: f.ID, Host: host, Kind: f.Kind, Labels: maps.Clone(f.Labels), Serial: f.Serial,
			Presence: Present, Health: Unknown, Use: Free, Reason: "not checked yet",
		}, nil
	}
	d := *prev
	if d.Host != host {
		if d.Presence != Absent || d.Use != Free {
			return d, forgeyard.Errorf("declare device", forgeyard.Conflict, "%s is hosted by %s, where it is %s and %s", d.ID, d.Host, d.Presence, d.Use).
				WithHint("give one of the two devices another id in node.yaml")
		}
		d.Host = host
	}
	if d.Kind != f.Kind || d.Serial != f.Serial {
		d = d.doubt("it is declared anew: kind %s, serial %q; before: kind %s, serial %q", f.Kind, f.Serial, d.Kind, d.Serial)
	}
	d.Kind, d.Serial, d.Labels = f.Kind, f.Serial, maps.Clone(f.Labels)
	if d.Presence != Absent {
		return d, nil
	}
	d.Presence = Present
	d = d.doubt("it came back and was not checked yet")
	if d.Flaps++; d.Flaps >= MaxFlaps {
		d.Flaps, d.Presence = MaxFlaps, Flapping
		d.Reason = "it comes and goes; it must be quiet before it is used again"
	}
	return d, nil
}

func checkFact(f Fact) error {
	if err := job.CheckWord(string(f.ID)); err != nil {
		return forgeyard.E("device id", forgeyard.Invalid, err)
	}
	if err := job.CheckWord(f.Kind); err != nil {
		return forgeyard.E("device kind", forgeyard.Invalid, err)
	}
	if err := job.CheckLabels(f.Labels); err != nil {
		return forgeyard.E("device "+string(f.ID), forgeyard.Invalid, err)
	}
	if len(f.Serial) > MaxReason {
		return forgeyard.Errorf("device serial", forgeyard.Invalid, "%d bytes; at most %d are allowed", len(f.Serial), MaxReason)
	}
	return nil
}
