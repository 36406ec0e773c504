package devices

import (
	"fmt"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/internal/cborx"
)

func ready(id string, labels ...string) Device {
	f := Fact{ID: forgeyard.DeviceID(id), Kind: "serial"}
	for i := 0; i+1 < len(labels); i += 2 {
		if f.Labels == nil {
			f.Labels = map[string]string{}
		}
		f.Labels[labels[i]] = labels[i+1]
	}
	d, err := Declare(nil, "host", f)
	if err != nil {
		panic(err)
	}
	if d, err = d.Checked(true, "", 1, 0); err != nil {
		panic(err)
	}
	return d
}

func grantOf(index uint64, req string) Grant {
	return Grant{Index: index, Lease: "L", RequestID: forgeyard.MessageID(req), Holder: Holder{Job: "J", Attempt: "A", Epoch: 1}, Origin: Local, TTL: time.Minute}
}

// TestOneHolderAmongManyRequests: D03, RA-393. Two hundred requests in the order of
// a log: one is granted, and each repeat of it is the same lease.
func TestOneHolderAmongManyRequests(t *testing.T) {
	d := ready("dut")
	winners := 0
	for i := range 200 {
		next, l, err := d.Grant(grantOf(uint64(10+i), fmt.Sprintf("r%d", i)))
		if err != nil {
			if forgeyard.KindOf(err) != forgeyard.Conflict {
				t.Fatal(err)
			}
			continue
		}
		winners++
		if _, again, err := next.Grant(grantOf(uint64(1000+i), fmt.Sprintf("r%d", i))); err != nil || again != l {
			t.Fatalf("%v %+v", err, again)
		}
		d = next
	}
	if winners != 1 {
		t.Fatalf("%d holders", winners)
	}
}

// TestGangIsGrantedWholeOrNotAtAll: D05.
func TestGangIsGrantedWholeOrNotAtAll(t *testing.T) {
	a, b := ready("a"), ready("b")
	busy, _, err := b.Grant(grantOf(5, "other"))
	if err != nil {
		t.Fatal(err)
	}
	gs := []Grant{grantOf(9, "r"), grantOf(9, "r")}
	if out, _, err := GrantAll([]Device{a, busy}, gs); forgeyard.KindOf(err) != forgeyard.Conflict || out != nil {
		t.Fatalf("%v %v", out, err)
	}
	if _, _, err := GrantAll([]Device{a, a}, gs); forgeyard.KindOf(err) != forgeyard.Invalid {
		t.Fatal("one device twice")
	}
	out, ls, err := GrantAll([]Device{a, b}, gs)
	if err != nil || out[0].Lease.Token != 9 || out[1].Lease.Token != 9 || ls[1].Device != "b" {
		t.Fatalf("%v %v", out, err)
	}
	if a.Lease != nil || b.Lease != nil {
		t.Fatal("a rule wrote to its argument")
	}
}

func TestGrantRefusesNonsense(t *testing.T) {
	d := ready("dut")
	for name, edit := range map[string]func(*Grant){
		"no index":      func(g *Grant) { g.Index = 0 },
		"no request":    func(g *Grant) { g.RequestID = "" },
		"no lease id":   func(g *Grant) { g.Lease = "" },
		"no ttl":        func(g *Grant) { g.TTL = 0 },
		"long ttl":      func(g *Grant) { g.TTL = MaxTTL + 1 },
		"no origin":     func(g *Grant) { g.Origin = "" },
		"no holder":     func(g *Grant) { g.Holder = Holder{} },
		"two holders":   func(g *Grant) { g.Holder.Person = "ana" },
		"no epoch":      func(g *Grant) { g.Holder.Epoch = 0 },
		"job no try":    func(g *Grant) { g.Holder.Attempt = "" },
		"old log index": func(g *Grant) { g.Index = 3 },
	} {
		g := grantOf(9, "r")
		edit(&g)
		d := d
		d.HighestFence = 3
		want := forgeyard.Invalid
		if name == "old log index" {
			want = forgeyard.Stale
		}
		if _, _, err := d.Grant(g); forgeyard.KindOf(err) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, f := range []Fact{{}, {ID: "../x", Kind: "serial"}, {ID: "a"}, {ID: "a", Kind: "serial", Labels: map[string]string{"": ""}}} {
		if _, err := Declare(nil, "h", f); forgeyard.KindOf(err) != forgeyard.Invalid {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

// TestIdentity: D10, D11. A serial decides where there is one; the place decides else.
func TestIdentity(t *testing.T) {
	usb0, usb1 := Identity{"/dev/ttyUSB0", "A1", 1}, Identity{"/dev/ttyUSB1", "A1", 2}
	for _, c := range []struct {
		a, b Identity
		want bool
	}{
		{usb0, usb1, true}, // replugged: the number moved, the device did not
		{usb0, Identity{"/dev/ttyUSB0", "B2", 1}, false},
		{usb0, Identity{"/dev/ttyUSB0", "", 1}, false},
		{Identity{"/dev/pts/1", "", 7}, Identity{"/dev/pts/1", "", 7}, true},
		{Identity{"/dev/pts/1", "", 7}, Identity{"/dev/pts/2", "", 8}, false},
	} {
		if c.a.Same(c.b) != c.want || c.b.Same(c.a) != c.want {
			t.Errorf("%+v %+v", c.a, c.b)
		}
	}
}

// TestAssignAgainstEveryPermutation is the slow twin of the matching.
func TestAssignAgainstEveryPermutation(t *testing.T) {
	labels := []string{"x", "y", "z"}
	for seed := range 4000 {
		n := seed
		pick := func(k int) int { v := n % k; n = n/k + seed*7919%104729; return v }
		var ds []Device
		for i := range 1 + pick(4) {
			d := ready(fmt.Sprintf("d%d", i), labels[pick(3)], "1", labels[pick(3)], "1")
			if pick(4) == 0 {
				d = d.HostLost("away")
			}
			ds = append(ds, d)
		}
		var rs []Request
		for range 1 + pick(4) {
			rs = append(rs, Request{Labels: map[string]string{labels[pick(3)]: "1"}})
		}
		got, refused := Assign(rs, ds)
		if want := possible(rs, ds, map[int]bool{}); (got != nil) != want {
			t.Fatalf("seed %d: assigned %v, possible %v", seed, got, want)
		}
		if got == nil {
			if len(refused) != len(ds) {
				t.Fatalf("seed %d: %d reasons for %d devices", seed, len(refused), len(ds))
			}
			continue
		}
		used := map[forgeyard.DeviceID]bool{}
		for i, id := range got {
			for _, d := range ds {
				if d.ID == id && (rs[i].Fits(d) != "" || d.Grantable() != "") || used[id] {
					t.Fatalf("seed %d: %s does not serve request %d", seed, id, i)
				}
			}
			used[id] = true
		}
	}
}

func possible(rs []Request, ds []Device, used map[int]bool) bool {
	if len(rs) == 0 {
		return true
	}
	for i, d := range ds {
		if used[i] || rs[0].Fits(d) != "" || d.Grantable() != "" {
			continue
		}
		used[i] = true
		ok := possible(rs[1:], ds, used)
		delete(used, i)
		if ok {
			return true
		}
	}
	return false
}

func TestPossibleCountsBusyDevices(t *testing.T) {
	busy, _, err := ready("a", "x", "1").Grant(grantOf(4, "r"))
	if err != nil {
		t.Fatal(err)
	}
	x := Request{Kind: "serial", Labels: map[string]string{"x": "1"}}
	if why := Possible([]Request{x}, []Device{busy}); why != "" {
		t.Fatal(why)
	}
	if why := Possible([]Request{x, x}, []Device{busy}); why != "no device for kind serial x=1" {
		t.Fatal(why)
	}
	gone, err := busy.Withdraw(Retired, "eva", "broken")
	if err != nil || Possible([]Request{x}, []Device{gone}) == "" {
		t.Fatal("a retired device never serves again")
	}
}

func TestStateSurvivesItsEncoding(t *testing.T) {
	d, _, err := ready("dut", "board", "rev4").Grant(grantOf(4, "r"))
	if err != nil {
		t.Fatal(err)
	}
	if d, err = d.End(4, End{Index: 5, Reason: Expired}); err != nil {
		t.Fatal(err)
	}
	if d, err = d.ResetDone(Evidence{Token: 4, Try: 1, Error: "bad \xff bytes", Steps: []Step{{Name: "send", Detail: "\xff"}}}, 6, 7); err != nil {
		t.Fatal(err)
	}
	if d, err = d.Isolate("eva", "smells", 8, 9); err != nil {
		t.Fatal(err)
	}
	var back Device
	if err := cborx.UnmarshalCanonical(cborx.Marshal(d), &back); err != nil {
		t.Fatal(err)
	}
	if string(cborx.Marshal(back)) != string(cborx.Marshal(d)) {
		t.Fatalf("%+v", back)
	}
}

func FuzzDecodeDevice(f *testing.F) {
	f.Add(cborx.Marshal(ready("dut", "a", "b")))
	f.Fuzz(func(t *testing.T, b []byte) {
		var d Device
		if err := cborx.UnmarshalCanonical(b, &d); err == nil && string(cborx.Marshal(d)) != string(b) {
			t.Fatal("two encodings")
		}
	})
}

// E31 for devices: when a part of the log is lost, nobody gets a device before it was
// cleaned, whatever this state knows of it: it may have been free, held or in quarantine
// when the backup was made, and had any number of holders since. The token of the cleaning
// is above all of theirs.
func TestHoldersUnknown(t *testing.T) {
	const index = 1 << 41
	free := ready("dut")
	leased, l, err := free.Grant(grantOf(10, "r"))
	must(t, err)
	ended, err := leased.End(l.Token, End{Index: 11, Reason: HolderEnded})
	must(t, err)
	kept, err := free.Isolate("ana", "smells of smoke", 1, 1)
	must(t, err)
	for name, d := range map[string]Device{"never held": free, "being cleaned": ended, "in quarantine": kept} {
		d = d.HoldersUnknown(index, 5, "site recover")
		if d.Quarantine != nil {
			if d.Use != Free || d.Grantable() == "" {
				t.Errorf("%s: %s %q", name, d.Use, d.Grantable())
			}
			if d, err = d.Clear("ana"); err != nil {
				t.Fatal(err)
			}
		}
		if d.Use != Cleaning || d.Grantable() == "" || d.Last.Token != index || d.HighestFence != index || !d.Dirty {
			t.Errorf("%s: %+v", name, d)
		}
		if _, _, err := d.Grant(grantOf(index+1, "next")); err == nil {
			t.Errorf("%s: granted before it was cleaned", name)
		}
		if _, err := d.ResetDone(Evidence{Token: 10, Try: 1, OK: true}, index+2, 6); err == nil {
			t.Errorf("%s: a reset of before counts", name)
		}
		clean, err := d.ResetDone(Evidence{Token: index, Try: 1, OK: true}, index+2, 6)
		if err != nil || clean.Use != Free || clean.Dirty {
			t.Errorf("%s: %+v %v", name, clean, err)
		}
		if clean, err = clean.Checked(true, "", index+3, 7); err != nil {
			t.Fatal(err)
		}
		if next, l, err := clean.Grant(grantOf(index+4, "next")); err != nil || l.Token <= index || next.Use == Free {
			t.Errorf("%s: %v %+v", name, err, l)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
