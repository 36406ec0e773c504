//go:build linux

package runner

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/forgeyard/forgeyard-node/job"
	"github.com/forgeyard/forgeyard-node/node/runner/spool"
)

// A log bomb costs a bounded part of the spool and of the store, is counted, and is no failure
// of the work: what it did stands, and so does the word of how it ended. A later epoch has what
// earlier ones left of the bound.
func TestLogBomb(t *testing.T) {
	const most, bomb = 1 << 20, 64 << 20
	b := newBench(t, func(c *Config) { c.JobLog, c.SpoolLimit = most, 2<<20 })
	s := spec(`head -c 67108864 /dev/zero; echo made > out`)
	s.Outputs = []job.OutputDecl{{Path: "out"}}
	res, end, a := b.run(s)
	if res.Outcome != job.OutcomeDone || b.get(res.Outputs[0].Digest) != "made\n" {
		t.Fatalf("%+v\n%s", res, b.text(a)[:200])
	}
	size, program, gap := int64(0), int64(0), spool.Gap{}
	for _, c := range res.Log {
		size += c.Size
		for f, err := range spool.DecodeFrames(strings.NewReader(b.get(c.Digest))) {
			if err != nil {
				t.Fatal(err)
			}
			if f.Stream == spool.Stdout {
				program += int64(len(f.Bytes))
			}
			if strings.Contains(string(f.Bytes), `"gap"`) {
				if err := json.Unmarshal(f.Bytes, &gap); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if size > most+64<<10 || program < most/2 || program+gap.Bytes != bomb || end.LeftOut != gap.Bytes {
		t.Errorf("%d bytes in the store, %d of the program and %+v of %d; %d told", size, program, gap, bomb, end.LeftOut)
	}
	if text := b.text(a); !strings.Contains(text, `"event":"end"`) || !strings.Contains(text, "spool.per_job") {
		t.Error("the log does not say how it ended, or where its bound is set")
	}
	if err := a.Finish(false); err != nil {
		t.Fatal(err)
	}
	next := task(spec(`head -c 900000 /dev/zero`))
	next.LoggedBytes = most
	again := b.start(next)
	if _, end := b.wait(again); end.LeftOut < 900_000-leastLog {
		t.Errorf("a later epoch wrote all but %d bytes", end.LeftOut)
	}
}

// The end of a log is in a part that the job's record can name, however little of it earlier
// epochs and quiet hours left.
func TestLogBombWithFewParts(t *testing.T) {
	const parts = 20
	b := newBench(t, func(c *Config) { c.JobLog = 64 << 20 })
	of := task(spec(`head -c 33554432 /dev/zero`))
	of.LogParts = parts
	a := b.start(of)
	res, end := b.wait(a)
	if res.Outcome != job.OutcomeDone || end.LeftOut == 0 || len(res.Log) > parts {
		t.Fatalf("%+v, %d parts, %d bytes left out", res.Outcome, len(res.Log), end.LeftOut)
	}
	last := b.get(res.Log[len(res.Log)-1].Digest)
	if !strings.Contains(last, `"gap"`) || !strings.Contains(last, `"event":"end"`) {
		t.Error("the last part does not say what was left out, and how it ended")
	}
}

// The line that says what was left out names the bound that held, not the one of the start.
func TestLogBombAfterAReload(t *testing.T) {
	b := newBench(t, func(c *Config) { c.JobLog = 64 << 20 })
	b.r.SetBounds(0, 0, 1<<20)
	_, end, a := b.run(spec(`head -c 2097152 /dev/zero`))
	if text := b.text(a); end.LeftOut == 0 || !strings.Contains(text, "may have 1048576 (spool.per_job)") {
		t.Errorf("%d left out\n%s", end.LeftOut, text[max(0, len(text)-500):])
	}
}
