package devices

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
)

// TestTranscripts plays the stories in testdata. Each command is one log entry;
// the log index counts up from 1 and is the token of a grant.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/stories", func(t *testing.T, path string) {
		s := story{t: t, devices: map[forgeyard.DeviceID]Device{}}
		datadriven.RunTest(t, path, func(t *testing.T, td *datadriven.TestData) string {
			s.td = td
			return s.run()
		})
	})
}

type story struct {
	t       *testing.T
	td      *datadriven.TestData
	index   uint64
	devices map[forgeyard.DeviceID]Device
}

func (s *story) arg(key, def string) string {
	v := def
	s.td.MaybeScanArgs(s.t, key, &v)
	return v
}

func (s *story) num(key string) uint64 {
	var n uint64
	s.td.MaybeScanArgs(s.t, key, &n)
	return n
}

func (s *story) run() string {
	s.index++
	id := forgeyard.DeviceID(s.arg("id", "dut"))
	if s.td.Cmd == "show" {
		return s.line(s.devices[id])
	}
	if s.td.Cmd == "match" {
		return s.match()
	}
	d, err := s.apply(s.devices[id], id)
	if err != nil {
		return fmt.Sprintf("%s: %v", forgeyard.KindOf(err), err)
	}
	same := string(cborx.Marshal(d)) == string(cborx.Marshal(s.devices[id]))
	s.devices[id] = d
	if same {
		return "nothing changes"
	}
	return s.line(d)
}

func (s *story) apply(d Device, id forgeyard.DeviceID) (Device, error) {
	why, by := strings.ReplaceAll(s.arg("why", ""), "_", " "), s.arg("by", "")
	switch s.td.Cmd {
	case "declare":
		var prev *Device
		if d.ID != "" {
			prev = &d
		}
		f := Fact{ID: id, Kind: s.arg("kind", "serial"), Serial: s.arg("serial", "")}
		if l := s.arg("label", ""); l != "" {
			k, v, _ := strings.Cut(l, ":")
			f.Labels = map[string]string{k: v}
		}
		return Declare(prev, forgeyard.RunnerID(s.arg("host", "host-a")), f)
	case "host-lost":
		return d.HostLost(why), nil
	case "host-restarted":
		return d.HostRestarted(why), nil
	case "settled":
		return d.Settled(), nil
	case "check":
		return d.Checked(s.arg("result", "ok") == "ok", why, s.index, 0)
	case "grant":
		d, _, err := d.Grant(Grant{
			Index: s.index, Lease: "L", RequestID: forgeyard.MessageID(s.arg("request", "r")), Holder: Holder{Person: s.arg("to", "ana")},
			Origin: Local, TTL: time.Minute, Prepare: s.td.HasArg("prepare"),
		})
		return d, err
	case "prepared":
		return d.Prepared(s.num("token"), s.arg("result", "ok") == "ok", why, End{Index: s.index})
	case "end":
		return d.End(s.num("token"), End{Index: s.index, Reason: EndReason(s.arg("reason", "released")), By: by})
	case "admit":
		return d, d.Admit(s.num("token"))
	case "reset":
		return d.ResetDone(Evidence{Token: s.num("token"), Try: int(s.num("try")), OK: s.arg("result", "ok") == "ok", Error: why}, s.index, 0)
	case "quarantine":
		return d.Isolate(by, why, s.index, 0)
	case "clear":
		return d.Clear(by)
	case "recovered":
		return d.Recovered(Evidence{Try: int(s.num("try")), OK: s.arg("result", "ok") == "ok"})
	case "withdraw":
		return d.Withdraw(Health(s.arg("health", "")), by, why)
	}
	s.t.Fatalf("unknown command %s", s.td.Cmd)
	return d, nil
}

func (s *story) match() string {
	var all []Device
	for _, d := range s.devices {
		all = append(all, d)
	}
	r := Request{Kind: s.arg("kind", ""), ID: forgeyard.DeviceID(s.arg("name", ""))}
	if l := s.arg("label", ""); l != "" {
		k, v, _ := strings.Cut(l, ":")
		r.Labels = map[string]string{k: v}
	}
	able, refused := Match(r, all)
	var b strings.Builder
	for _, id := range able {
		fmt.Fprintf(&b, "%s serves\n", id)
	}
	for _, x := range refused {
		fmt.Fprintf(&b, "%s: %s\n", x.Device, x.Reason)
	}
	return b.String()
}

func (s *story) line(d Device) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d: %s on %s: %s, %s, %s", s.index, d.ID, d.Host, d.Presence, d.Health, d.Use)
	if d.Lease != nil {
		fmt.Fprintf(&b, ", token %d to %s", d.Lease.Token, d.Lease.Holder)
	}
	if d.Last != nil && d.Use == Cleaning {
		fmt.Fprintf(&b, " after token %d (%s), resets failed %d", d.Last.Token, d.Last.EndReason, d.Resets)
	}
	if d.Reason != "" {
		fmt.Fprintf(&b, "; %s", d.Reason)
	}
	if q := d.Quarantine; q != nil {
		fmt.Fprintf(&b, "\nquarantine by %s: %s, tries left %d", q.By, q.Reason, q.TriesLeft)
	}
	fmt.Fprintf(&b, "\n%s", map[bool]string{true: "grantable", false: "not grantable: " + d.Grantable()}[d.Grantable() == ""])
	return b.String()
}
