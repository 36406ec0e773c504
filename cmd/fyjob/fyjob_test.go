//go:build unix

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forgeyard/forgeyard-node/checkpoint"
	"github.com/forgeyard/forgeyard-node/checkpoint/capture"
	"github.com/forgeyard/forgeyard-node/internal/needs"
	"github.com/forgeyard/forgeyard-node/job"
)

// call runs fyjob as a real process in the current epoch, with nobody serving.
func (s *site) call(env map[string]string, args ...string) (code int, stdout, stderr string) {
	cmd := s.command(env, append([]string{filepath.Join(s.bin, "fyjob")}, args...)...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode(), out.String(), errs.String()
	}
	check(s.t, err)
	return 0, out.String(), errs.String()
}

func simple() job.Resume { return job.Resume{Mode: job.ResumeApplication} }

func TestCommitExitCodes(t *testing.T) {
	const script = `d=$(fyjob ckpt begin); echo x >"$d/x"; fyjob ckpt commit "$d"`
	for status, want := range map[checkpoint.Status]int{
		checkpoint.StatusCommitted: 0, checkpoint.StatusStaged: 3, checkpoint.StatusRejected: 4, checkpoint.StatusStale: 5, checkpoint.StatusLimit: 7,
	} {
		s := newSite(t, simple())
		s.verdict = func(seq int) checkpoint.Answer {
			return checkpoint.Answer{Seq: seq, Status: status, Reason: "because " + string(status)}
		}
		code, stderr := s.run("/bin/sh", "-euc", script)
		if code != want || (want != 0) != strings.Contains(stderr, "because "+string(status)) {
			t.Errorf("%s: exit %d, want %d; %q", status, code, want, stderr)
		}
	}
}

// CK-084: what is sealed is on the disk first: each file, each folder and the marker, and then the
// name that makes a checkpoint of them.
func TestCommitIsOnTheDisk(t *testing.T) {
	const strace = "/usr/bin/strace"
	if out, err := exec.Command(strace, "-qq", "true").CombinedOutput(); err != nil {
		needs.Lacking(t, "strace: %v %s", err, out)
	}
	s := newSite(t, simple())
	trace := filepath.Join(s.bin, "trace")
	code, stderr := s.run("/bin/sh", "-euc", `d=$(fyjob ckpt begin); mkdir "$d/sub"; echo x >"$d/sub/x"; echo y >"$d/y"; `+strace+` -f -y -qq -e trace=fsync,rename,renameat,renameat2 -o `+trace+` fyjob ckpt commit "$d"`)
	if code != 0 {
		t.Fatalf("exit %d %s", code, stderr)
	}
	b, err := os.ReadFile(trace)
	check(t, err)
	before, after, ok := strings.Cut(string(b), `/000001")`)
	if !ok {
		t.Fatalf("nothing was sealed:\n%s", b)
	}
	// Files are synced side by side: a call may be told in two lines, of its begin and of its end.
	begun := func(in, path string) bool {
		return strings.Contains(in, "<"+path+">) = 0\n") || strings.Contains(in, "<"+path+"> <unfinished ...>\n")
	}
	slot := s.path("ckpt/000001.tmp")
	for _, p := range []string{"/sub/x", "/sub", "/y", "/.fy-checkpoint.json.tmp", ""} {
		if !begun(before, slot+p) {
			t.Errorf("%q was not synced before it was sealed:\n%s", p, before)
		}
	}
	if strings.Count(before, "<unfinished ...>") != strings.Count(before, "fsync resumed>)") {
		t.Errorf("a sync was not over when it was sealed:\n%s", before)
	}
	if !begun(after, s.path("ckpt")) {
		t.Errorf("its name was not synced:\n%s", after)
	}
}

// TestCommitRefusedByTheRunner: what the helper lets pass, the runner still checks.
func TestCommitRefusedByTheRunner(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		want   int
		say    string
	}{
		"not quiesced":     {`d=$(fyjob ckpt begin); echo x >"$d/x"; fyjob ckpt commit "$d" --quiesced=false`, exitRejected, "consistency"},
		"another format":   {`d=$(fyjob ckpt begin); echo x >"$d/x"; fyjob ckpt commit "$d" --format other:9`, exitRejected, "format"},
		"K04 extra file":   {`d=$(fyjob ckpt begin); echo x >"$d/x"; fyjob ckpt commit "$d" & while [ -d "$d" ]; do :; done; echo y >"${d%.tmp}/y" || :; wait $!`, -2, ""},
		"hard link":        {`d=$(fyjob ckpt begin); echo x >x; ln x "$d/x"; fyjob ckpt commit "$d"`, exitRejected, "irregular-file"},
		"symbolic link":    {`d=$(fyjob ckpt begin); ln -s /etc/passwd "$d/x"; fyjob ckpt commit "$d"`, exitRejected, "no regular file"},
		"nothing in it":    {`d=$(fyjob ckpt begin); fyjob ckpt commit "$d"`, exitRejected, "no file"},
		"too large":        {`d=$(fyjob ckpt begin); head -c 2000 /dev/zero >"$d/x"; fyjob ckpt commit "$d"`, exitLimit, "max_bytes"},
		"stale by its env": {`d=$(fyjob ckpt begin); echo x >"$d/x"; FORGEYARD_EPOCH=7 fyjob ckpt commit "$d"`, exitStale, "epoch"},
		"not of begin":     {`mkdir x; fyjob ckpt commit x`, exitUsage, "ckpt begin"},
		"outside":          {`mkdir 000001.tmp; fyjob ckpt commit 000001.tmp`, exitUsage, "is not in"},
	} {
		t.Run(name, func(t *testing.T) {
			r := job.Resume{Mode: job.ResumeApplication, FormatName: "f", FormatVersion: 1, Checkpoint: job.CheckpointDecl{MaxBytes: 1000}}
			s := newSite(t, r)
			code, stderr := s.run("/bin/sh", "-euc", c.script)
			if c.want == -2 { // A race on purpose: in before the listing, or too late to matter.
				if code == 0 && len(s.history) == 1 || code == exitRejected && strings.Contains(stderr, "extra-file") {
					return
				}
			} else if code == c.want && strings.Contains(stderr, c.say) && len(s.history) == 0 {
				return
			}
			t.Fatalf("exit %d, want %d, %q; checkpoints %v", code, c.want, stderr, slots(s.history))
		})
	}
}

// TestCommitAgain: a program that was stopped between sealing and asking asks again.
func TestCommitAgain(t *testing.T) {
	s := newSite(t, simple())
	code, stderr := s.run("/bin/sh", "-euc", `d=$(fyjob ckpt begin); echo x >"$d/x"; fyjob ckpt commit "$d"; d2=$(fyjob ckpt begin); [ "$d" != "$d2" ]
		echo y >"$d2/y"; echo part >"$d2/.fy-checkpoint.json.tmp"; fyjob ckpt commit "$d2"; d3=$(fyjob ckpt begin); fyjob ckpt abort "$d3"; [ ! -e "$d3" ]; basename "$d3" >&2`)
	if code != 0 || strings.Join(slots(s.history), " ") != "1.1 1.2" || !strings.Contains(stderr, "000003.tmp") {
		t.Fatalf("exit %d, %s, %v", code, stderr, slots(s.history))
	}
	// Sealed, and nobody answers within the window: staged. The slot waits for the runner.
	env := s.grant()
	env[checkpoint.EnvWindow] = "1"
	_, dir, _ := s.call(env, "ckpt", "begin")
	dir = strings.TrimSpace(dir)
	check(t, os.WriteFile(filepath.Join(dir, "z"), []byte("z"), 0o644))
	for range 2 {
		if code, _, stderr := s.call(env, "ckpt", "commit", dir); code != exitStaged {
			t.Fatalf("exit %d, %s", code, stderr)
		}
	}
	if found, err := capture.Sealed(s.path("ckpt")); err != nil || !slices.Equal(found, []int{3}) {
		t.Fatalf("%v, %v", found, err)
	}
}

// TestBeginTogether: numbers are given out once, whoever asks at the same time.
func TestBeginTogether(t *testing.T) {
	s := newSite(t, simple())
	env := s.grant()
	dirs := make([]string, 8)
	var wg sync.WaitGroup
	for i := range dirs {
		wg.Go(func() { _, dirs[i], _ = s.call(env, "ckpt", "begin") })
	}
	wg.Wait()
	slices.Sort(dirs)
	if n := len(slices.Compact(dirs)); n != 8 || dirs[0] == "" {
		t.Fatalf("%d directories for 8 callers: %q", n, dirs)
	}
}

func TestPostTogether(t *testing.T) {
	s := newSite(t, simple())
	env := s.grant()
	h, err := newHelper(func(k string) string { return env[k] }, time.Now, os.Stdout)
	check(t, err)
	ns := make([]int, 32)
	var wg sync.WaitGroup
	for i := range ns {
		wg.Go(func() {
			n, err := h.post(checkpoint.Message{Kind: checkpoint.MessageRestoreOK})
			if ns[i] = n; err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	got, err := capture.ReadOutbox(h.ctl)
	check(t, err)
	slices.Sort(ns)
	if len(slices.Compact(ns)) != 32 || len(got) != 32 {
		t.Fatalf("numbers %v, %d messages", ns, len(got))
	}
}

func TestShould(t *testing.T) {
	s := newSite(t, job.Resume{Mode: job.ResumeApplication, Checkpoint: job.CheckpointDecl{Interval: time.Minute}})
	env := s.grant()
	now := time.Unix(1e9, 0)
	should := func(verb ...string) int {
		var out strings.Builder
		return run(verb, func(k string) string { return env[k] }, func() time.Time { return now }, &out, &out)
	}
	want := func(code int, verb ...string) {
		t.Helper()
		if got := should(verb...); got != code {
			t.Errorf("%v: exit %d, want %d", verb, got, code)
		}
	}
	want(1, "ckpt", "should") // Starts the interval.
	now = now.Add(59 * time.Second)
	want(1, "ckpt", "should")
	now = now.Add(time.Second)
	want(0, "ckpt", "should")
	now = now.Add(-time.Hour) // Somebody set the clock back.
	want(0, "ckpt", "should")
	now = now.Add(time.Hour - 30*time.Second)
	want(1, "ckpt", "should")
	want(1, "why")
	check(t, capture.WriteRequest(s.path("ctl"), checkpoint.Request{Seq: 4, Kind: checkpoint.StopCheckpoint, WantCheckpoint: true}))
	want(0, "ckpt", "should")
	want(1, "ckpt", "should-exit")
	want(0, "why")
	// Answered: asked and done.
	h, err := newHelper(func(k string) string { return env[k] }, func() time.Time { return now }, os.Stdout)
	check(t, err)
	check(t, h.conclude(checkpoint.Answer{Status: checkpoint.StatusCommitted}, 4))
	want(1, "ckpt", "should")
	check(t, capture.WriteRequest(s.path("ctl"), checkpoint.Request{Seq: 5, Kind: checkpoint.StopPreempt, WantCheckpoint: true, WantExit: true}))
	want(1, "ckpt", "should-exit") // not before it was asked for what it did since the last one
	want(0, "ckpt", "should")
	want(0, "ckpt", "should-exit")
	env[checkpoint.EnvMode] = "restart-stage"
	want(1, "ckpt", "should")
	want(exitRejected, "ckpt", "begin")
}

func TestSigns(t *testing.T) {
	s := newSite(t, simple())
	env := s.grant()
	is := func(code int, say string, args ...string) {
		t.Helper()
		got, out, errs := s.call(env, args...)
		if got != code || !strings.Contains(out+errs, say) {
			t.Errorf("%v: exit %d, want %d; %q", args, got, code, out+errs)
		}
	}
	is(0, "", "critical", "begin", "--max", "3s")
	if c, ok, err := capture.ReadCritical(s.path("ctl")); !ok || err != nil || c.MaxMillis != 3000 || c.PID != os.Getpid() {
		t.Errorf("%+v, %v, %v", c, ok, err)
	}
	is(0, "", "critical", "end")
	is(0, "", "critical", "end")
	is(exitUsage, "not in", "critical", "begin", "--max", "24h")
	is(0, "", "progress", "420/1000", "--unit", "step")
	is(0, "", "progress", "420/1000")
	if h, ok, err := capture.ReadHeartbeat(s.path("ctl")); !ok || err != nil || h.Beat != 2 || h.Progress.Done != 420 {
		t.Errorf("%+v, %v, %v", h, ok, err)
	}
	is(exitUsage, "DONE", "progress", "much")
	is(1, "", "restore", "path")
	is(1, "fresh", "restore", "ok")
	is(exitUsage, "reason", "restore", "reject")
	is(1, "", "why")
	check(t, capture.WriteRequest(s.path("ctl"), checkpoint.Request{Seq: 1, Kind: checkpoint.StopPreempt, Reason: "spot notice", WantExit: true, Deadline: time.Unix(1e9, 0).UTC()}))
	is(0, "preempt: spot notice (until 2001-09-09T01:46:40Z, not promised)", "why")
	is(1, "", "critical", "begin")
	if _, ok, _ := capture.ReadCritical(s.path("ctl")); ok {
		t.Error("a critical section began during a stop")
	}
	is(0, "ok   request preempt (seq 1)", "doctor")
	check(t, os.RemoveAll(s.path("ctl/outbox")))
	is(1, "FAIL can write in the outbox", "doctor")
}

func TestUsageAndSurroundings(t *testing.T) {
	s := newSite(t, simple())
	env := s.grant()
	for _, c := range []struct {
		env  map[string]string
		code int
		args string
	}{
		{nil, 0, "--help"}, {nil, 0, "ckpt commit --help"}, {nil, 0, "help"},
		{env, 2, ""}, {env, 2, "ckpt"}, {env, 2, "effect begin x"}, {env, 4, "cursor done x --outcome pass"}, {env, 2, "mark set"},
		{env, 2, "ckpt should now"}, {env, 2, "ckpt commit"}, {env, 2, "ckpt commit a b"}, {env, 2, "ckpt commit --colour red a"},
		{env, 2, "ckpt commit " + s.path("ckpt/000001.tmp") + " --progress much"}, {env, 2, "ckpt commit " + s.path("ckpt/000001.tmp") + " --format f"},
		{nil, 6, "ckpt should"}, {nil, 6, "ckpt begin"}, {nil, 6, "doctor"}, {nil, 6, "progress 1"},
		{map[string]string{checkpoint.EnvProtocol: "2"}, 6, "why"}, {map[string]string{checkpoint.EnvProtocol: "1"}, 6, "why"},
	} {
		code, out, errs := s.call(c.env, strings.Fields(c.args)...)
		if code != c.code || code == 0 && !strings.Contains(out, "Exit codes") || code != 0 && strings.Count(errs, "\n") != 1 {
			t.Errorf("%q: exit %d, want %d; %q %q", c.args, code, c.code, out, errs)
		}
	}
	// The help lists what there is, and only that.
	for _, v := range verbs() {
		if !strings.Contains(helpText, fmt.Sprintf("fyjob %s", v.words)) {
			t.Errorf("the help does not list %q", v.words)
		}
	}
}
