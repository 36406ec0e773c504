package cursor

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node"
	"github.com/forgeyard/forgeyard-node/cas"
	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/job"
)

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func plan(n int) (p Plan) {
	for i := range n {
		p = append(p, fmt.Sprintf("pkg%d::Test%04d", i/10, i))
	}
	return p
}

// book writes records one after the other.
type book struct {
	seq int
	out []Record
}

func (b *book) add(epoch uint64, id string, e Event, o Outcome) {
	b.seq++
	r := Record{Seq: b.seq, Epoch: epoch, ID: id, Event: e, Outcome: o, Started: 1000}
	if e == End {
		r.Ended = 1010
	}
	b.out = append(b.out, r)
}

func (b *book) test(epoch uint64, id string, o Outcome) {
	b.add(epoch, id, Start, "")
	b.add(epoch, id, End, o)
}

func encode(t testing.TB, r []Record) []byte {
	t.Helper()
	b, err := Encode(r)
	check(t, err)
	return b
}

func fold(t testing.TB, p Plan, r []Record, i job.Isolation, epoch uint64) State {
	t.Helper()
	s, err := Fold(p, r, i, epoch)
	check(t, err)
	return s
}

// CK-175, K11: cut at every byte, what had ended before the cut is there, and nothing else is.
func TestK11CrashAtEveryByte(t *testing.T) {
	p := plan(12)
	b := &book{}
	var whole []byte
	type mark struct{ bytes, ended int }
	marks := []mark{{}}
	for i, id := range p {
		for _, e := range []Event{Start, End} {
			o := Outcome("")
			if e == End {
				o = []Outcome{Pass, Fail, Skip, Error}[i%4]
			}
			b.add(1, id, e, o)
			whole = append(whole, b.out[len(b.out)-1].Line()...)
			ended := marks[len(marks)-1].ended
			if e == End {
				ended++
			}
			marks = append(marks, mark{len(whole), ended})
		}
	}
	for cut := 0; cut <= len(whole); cut++ {
		for _, tail := range [][]byte{nil, {0}, []byte("\x00\x00\n"), []byte("{}\n")} { // what a disk may leave behind the cut
			l, err := Decode(append(slices.Clone(whole[:cut]), tail...))
			check(t, err)
			want := mark{}
			for _, m := range marks {
				if m.bytes <= cut {
					want = m
				}
			}
			s := fold(t, p, l.Records, job.Isolated, 1)
			if l.Good != want.bytes || s.Done() != want.ended || len(s.Remaining()) != len(p)-want.ended {
				t.Fatalf("cut at %d with %q: %d good bytes, %d done; want %+v", cut, tail, l.Good, s.Done(), want)
			}
		}
	}
}

// K11: a thousand tests, a crash at a random record, again and again: no test whose end was
// written runs again, and all come to their end.
func TestK11ThousandTests(t *testing.T) {
	p := plan(1000)
	rnd := rand.New(rand.NewPCG(1, 2))
	var carried []Record
	runs, lost := 0, 0 // of tests; of ends that the crashes cut off
	epoch := uint64(0)
	for {
		epoch++
		left := fold(t, p, carried, job.Isolated, epoch).Remaining()
		if len(left) == 0 {
			break
		}
		b := &book{seq: (Log{Records: carried}).Last()}
		for _, id := range left[:min(len(left), 1+rnd.IntN(150))] {
			runs++
			b.test(epoch, id, Pass)
		}
		bytes := encode(t, b.out)
		if len(left) > 150 {
			bytes = bytes[:len(bytes)-rnd.IntN(400)] // the crash
		}
		l, err := Decode(bytes)
		check(t, err)
		for _, r := range b.out[len(l.Records):] {
			if r.Event == End {
				lost++
			}
		}
		carried, err = Merge(carried, l.Records, epoch)
		check(t, err)
	}
	ended := map[string]bool{}
	for _, r := range carried {
		if ended[r.ID] {
			t.Fatalf("%s ran after its end was written", r.ID)
		}
		ended[r.ID] = r.Event == End
	}
	rep := fold(t, p, carried, job.Isolated, epoch).Report()
	if !rep.OK() || rep.Passed != 1000 || rep.Carried != 1000 || epoch < 5 {
		t.Fatalf("epoch %d: %d passed, %d carried, complete %v", epoch, rep.Passed, rep.Carried, rep.Complete)
	}
	if runs != 1000+lost || lost == 0 {
		t.Errorf("%d runs of 1000 tests, %d ends were lost", runs, lost)
	}
}

func TestDamageInTheMiddle(t *testing.T) {
	b := &book{}
	for _, id := range plan(4) {
		b.test(1, id, Pass)
	}
	whole := encode(t, b.out)
	second := bytes.IndexByte(whole, '\n') + 1
	last := bytes.LastIndexByte(whole[:len(whole)-1], '\n') + 1
	for i := range whole {
		bent := slices.Clone(whole)
		bent[i] ^= 1
		l, err := Decode(bent)
		switch {
		case i >= last-1: // with its newline bent, the line before is one with the last
			if want := min(7, 7+i-last); err != nil || len(l.Records) != want {
				t.Fatalf("byte %d of the last line: %d records, %v", i, len(l.Records), err)
			}
		case forgeyard.KindOf(err) != forgeyard.Corrupt:
			t.Fatalf("byte %d: %v", i, err)
		}
	}
	for name, bad := range map[string][]byte{
		"twice the same number": append(slices.Clone(whole), whole[:second]...),
		"backwards":             append(slices.Clone(whole[second:]), append(slices.Clone(whole[:second]), whole[second:]...)...),
	} {
		if _, err := Decode(bad); forgeyard.KindOf(err) != forgeyard.Corrupt {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLines(t *testing.T) {
	good := Record{Seq: 1, Epoch: 1, ID: "a", Event: End, Outcome: Pass}
	if l, err := Decode(good.Line()); err != nil || !slices.Equal(l.Records, []Record{good}) {
		t.Fatalf("%+v %v", l, err)
	}
	// Any order of keys, and blanks, as long as the checksum is the last key.
	rest := `{ "event":"start", "id":"a", "epoch":1, "seq":1}`
	if r, err := parseLine([]byte(rest[:len(rest)-1] + sumKey + checksum([]byte(rest)) + `"}`)); err != nil || r.Event != Start {
		t.Fatal(r, err)
	}
	for name, r := range map[string]Record{
		"no id":               {Seq: 1, Epoch: 1, Event: Start},
		"epoch 0":             {Seq: 1, ID: "a", Event: Start},
		"seq 0":               {Epoch: 1, ID: "a", Event: Start},
		"no event":            {Seq: 1, Epoch: 1, ID: "a"},
		"end without outcome": {Seq: 1, Epoch: 1, ID: "a", Event: End},
		"other outcome":       {Seq: 1, Epoch: 1, ID: "a", Event: End, Outcome: "passed"},
		"start with outcome":  {Seq: 1, Epoch: 1, ID: "a", Event: Start, Outcome: Pass},
		"two lines":           {Seq: 1, Epoch: 1, ID: "a\nb", Event: Start},
		"long id":             {Seq: 1, Epoch: 1, ID: strings.Repeat("a", MaxID+1), Event: Start},
		"long evidence":       {Seq: 1, Epoch: 1, ID: "a", Event: Start, Evidence: strings.Repeat("a", checkpoint.MaxText+1)},
		"negative time":       {Seq: 1, Epoch: 1, ID: "a", Event: Start, Started: -1},
	} {
		line := r.Line()
		if _, err := parseLine(line[:len(line)-1]); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	for _, rest := range []string{`{"seq":1,"seq":2,"epoch":1,"id":"a","event":"start"}`, `{"seq":1,"epoch":1,"id":"a","event":"start","x":1}`} {
		if _, err := parseLine([]byte(rest[:len(rest)-1] + sumKey + checksum([]byte(rest)) + `"}`)); err == nil {
			t.Errorf("%s is taken", rest)
		}
	}
}

// The line of a record does not change.
func TestGolden(t *testing.T) {
	b, err := os.ReadFile("testdata/cursor.hex")
	check(t, err)
	want, err := hex.DecodeString(strings.Join(strings.Fields(string(b)), ""))
	check(t, err)
	records := []Record{
		{Seq: 1, Epoch: 1, ID: "pkg::TestA", Event: Start, Started: 1700000000000},
		{Seq: 2, Epoch: 1, ID: "pkg::TestA", Event: End, Outcome: Pass, Started: 1700000000000, Ended: 1700000000250},
		{Seq: 7, Epoch: 3, ID: "tests/test_ä.py::test[<x>]", Event: End, Outcome: Error, Evidence: "logs/b.txt"},
	}
	if got := encode(t, records); !bytes.Equal(got, want) {
		t.Fatalf("got  %x\nwant %x\n%s", got, want, got)
	}
	l, err := Decode(want)
	if err != nil || !slices.Equal(l.Records, records) {
		t.Fatalf("%+v %v", l, err)
	}
}

// Later outcomes win, a start is no end, and durations are summed over epochs (CK-175).
func TestFold(t *testing.T) {
	p := plan(3)
	b := &book{}
	b.test(1, p[0], Pass)
	b.add(1, p[1], Start, "")
	b.test(2, p[0], Fail)
	b.test(2, p[1], Skip)
	s := fold(t, p, b.out, job.Isolated, 3)
	r := s.Report()
	if r.Failed != 1 || r.Skipped != 1 || r.Missing != 1 || r.Passed != 0 || r.Complete || r.OK() || r.Carried != 2 || r.Duration != 30 {
		t.Fatalf("%+v", r)
	}
	if l := r.Results[0]; l.Outcome != Fail || l.Carried != 2 || l.Duration != 20 {
		t.Errorf("%+v", l)
	}
	if got := s.Remaining(); !slices.Equal(got, []string{p[2]}) {
		t.Errorf("remaining %v", got)
	}
	if pr := s.Progress(); pr != (checkpoint.Progress{Unit: "test", Done: 2, Total: 3}) {
		t.Errorf("%+v", pr)
	}
	if s := fold(t, p, b.out, job.Isolated, 2); s.Report().Carried != 0 {
		t.Error("results of this epoch are called carried")
	}
	if _, err := Fold(p[:1], b.out, job.Isolated, 3); forgeyard.KindOf(err) != forgeyard.Invalid {
		t.Errorf("a test outside of the plan: %v", err)
	}
	if _, err := Fold(p, b.out, job.Isolated, 1); forgeyard.KindOf(err) != forgeyard.Invalid {
		t.Errorf("a record of a later epoch: %v", err)
	}
}

// CK-176: what counts in the next epoch depends on the isolation.
func TestIsolation(t *testing.T) {
	p := Plan{"a.py::one", "a.py::two", "b.py::one", "b.py::two"}
	b := &book{}
	b.test(1, "a.py::one", Pass)
	b.test(1, "a.py::two", Pass)
	b.test(1, "b.py::one", Pass)
	for i, want := range map[job.Isolation][]string{
		job.Isolated: {"b.py::two"},
		job.Suite:    {"b.py::one", "b.py::two"},
		job.Ordered:  p,
	} {
		if got := fold(t, p, b.out, i, 2).Remaining(); !slices.Equal(got, want) {
			t.Errorf("%s: %v remain, want %v", i, got, want)
		}
		if got := fold(t, p, b.out, i, 1).Remaining(); !slices.Equal(got, p[3:]) {
			t.Errorf("%s, same epoch: %v remain", i, got)
		}
	}
	// A suite that was cut twice is not made of two halves.
	b.test(2, "b.py::two", Pass)
	if got := fold(t, p, b.out, job.Suite, 3).Remaining(); !slices.Equal(got, p[2:]) {
		t.Errorf("two halves: %v remain", got)
	}
	b.test(3, "b.py::one", Pass)
	b.test(3, "b.py::two", Pass)
	if got := fold(t, p, b.out, job.Suite, 4).Remaining(); len(got) != 0 {
		t.Errorf("%v remain", got)
	}
	for id, want := range map[string]string{"p::A": "p", "dir/x": "dir", "x": "", "a/b.py::C::d": "a/b.py"} {
		if got := Suite(id); got != want {
			t.Errorf("the suite of %q is %q", id, got)
		}
	}
}

func TestBinding(t *testing.T) {
	p, bin := plan(3), cas.Sum([]byte("binary"))
	b := Bind(p, bin, job.Isolated)
	back, err := ParseBinding(b.Encode())
	if err != nil || back != b {
		t.Fatal(back, err)
	}
	if f := b.Carries(b); !f.OK() {
		t.Fatal(f)
	}
	for code, old := range map[checkpoint.Code]Binding{
		CodeList: Bind(plan(4), bin, job.Isolated), CodeBinary: Bind(p, forgeyard.Digest{}, job.Isolated), CodeIsolation: Bind(p, bin, job.Suite),
	} {
		if f := b.Carries(old); f.Verdict != checkpoint.Incompatible || f.Code != code || f.Detail == "" {
			t.Errorf("%s: %s", code, f)
		}
	}
	o := Bind(p, bin, job.Ordered)
	if f := o.Carries(o); f.OK() {
		t.Error("ordered tests are carried on")
	}
	for _, s := range []string{`{}`, `{"v":1}`, strings.Replace(string(b.Encode()), "isolated", "loose", 1), strings.Replace(string(b.Encode()), `"v":1`, `"v":2`, 1)} {
		if _, err := ParseBinding([]byte(s)); err == nil {
			t.Errorf("%s is taken", s)
		}
	}
}

func TestPlans(t *testing.T) {
	p, err := ParsePlan([]byte("a\nb c\n"))
	if err != nil || !slices.Equal(p, Plan{"a", "b c"}) || string(p.Encode()) != "a\nb c\n" || p.Digest() != cas.Sum([]byte("a\nb c\n")) {
		t.Fatal(p, err)
	}
	for _, s := range []string{"", "a", "a\n\nb\n", "a\na\n", "a\nb", "\xff\n", "a\r\n", strings.Repeat("x", MaxID+1) + "\n", strings.Repeat("x\n", MaxTests+1)} {
		if _, err := ParsePlan([]byte(s)); err == nil {
			t.Errorf("%q is taken", forgeyard.Clip(s, 40))
		}
	}
}

func TestMerge(t *testing.T) {
	a, b := &book{}, &book{seq: 2}
	a.test(1, "x", Pass)
	b.test(2, "y", Pass)
	if got, err := Merge(a.out, b.out, 2); err != nil || !slices.Equal(got, append([]Record{a.out[1]}, b.out...)) {
		t.Fatal(got, err)
	}
	if _, err := Merge(a.out, b.out, 3); err == nil {
		t.Error("records of another epoch are taken")
	}
	if _, err := Merge(b.out, a.out, 1); err == nil {
		t.Error("records are taken out of order")
	}
}

// CK-175: what is carried on has two records a test at most, however many epochs there were, and
// comes to the same report as all records together.
func TestMergeDoesNotGrow(t *testing.T) {
	p := plan(30)
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		b := &book{}
		var carried []Record
		for epoch := uint64(1); epoch <= 12; epoch++ {
			from := len(b.out)
			for range rnd.IntN(40) {
				id := p[rnd.IntN(len(p))]
				b.add(epoch, id, Start, "")
				if rnd.IntN(4) > 0 {
					b.add(epoch, id, End, []Outcome{Pass, Fail, Skip}[rnd.IntN(3)])
				}
			}
			now := b.out[from:]
			got, err := Merge(carried, now, epoch)
			check(t, err)
			carried = got
			if n := len(got) - len(now); n > 2*len(p) {
				t.Fatalf("seed %d, epoch %d: %d records of older epochs for %d tests", seed, epoch, n, len(p))
			}
			for _, i := range []job.Isolation{job.Isolated, job.Suite} {
				for _, at := range []uint64{epoch, epoch + 1} {
					if have, want := fold(t, p, got, i, at).Report().Encode(), fold(t, p, b.out, i, at).Report().Encode(); !bytes.Equal(have, want) {
						t.Fatalf("seed %d, %s, epoch %d seen from %d:\n%s\nall records: %s", seed, i, epoch, at, have, want)
					}
				}
			}
		}
	}
}

// What cannot be read back is not written: the bound of the whole, and of one line.
func TestEncodeBound(t *testing.T) {
	b := &book{}
	evidence := strings.Repeat("e", checkpoint.MaxText)
	for i := 0; len(b.out)*(checkpoint.MaxText+MaxID) <= MaxBytes; i++ {
		b.add(1, fmt.Sprintf("%0*d", MaxID, i), End, Pass)
		b.out[i].Evidence = evidence
	}
	if _, err := Encode(b.out); forgeyard.KindOf(err) != forgeyard.Limit || !strings.Contains(err.Error(), fmt.Sprint(MaxBytes)) {
		t.Errorf("%d records: %v", len(b.out), err)
	}
	if l, err := Decode(encode(t, b.out[:len(b.out)*4/5])); err != nil || len(l.Records) != len(b.out)*4/5 {
		t.Errorf("within the bound: %v", err)
	}
	long := Record{Seq: 1, Epoch: 1, ID: strings.Repeat("\x01", MaxID), Event: End, Outcome: Pass, Evidence: strings.Repeat("\x01", checkpoint.MaxText)}
	if _, err := Encode([]Record{long}); forgeyard.KindOf(err) != forgeyard.Limit {
		t.Errorf("a long line: %v", err)
	}
	if _, err := Encode(make([]Record, MaxRecords+1)); forgeyard.KindOf(err) != forgeyard.Limit {
		t.Errorf("too many records: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	b := &book{}
	b.test(1, "a", Pass)
	b.test(2, "b", Fail)
	f.Add(encode(f, b.out))
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		l, err := Decode(in)
		if err != nil {
			return
		}
		if l.Good > len(in) || l.Good > 0 && in[l.Good-1] != '\n' {
			t.Fatalf("%d good bytes of %d", l.Good, len(in))
		}
		b, err := Encode(l.Records)
		if err != nil {
			return // lines that are longer once they are written anew
		}
		again, err := Decode(b)
		if err != nil || !slices.Equal(again.Records, l.Records) {
			t.Fatalf("%v, %d records, then %d", err, len(l.Records), len(again.Records))
		}
		if p, err := ParsePlan(in); err == nil && !bytes.Equal(p.Encode(), in) {
			t.Fatal("a plan is written otherwise than it was read")
		}
	})
}
