package needs

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// spy is told what a test would be told.
type spy struct {
	testing.TB
	said string
}

func (s *spy) Helper() {}

func (s *spy) Skipf(format string, args ...any) { s.end("skipped: "+format, args...) }

func (s *spy) Fatalf(format string, args ...any) { s.end("failed: "+format, args...) }

func (s *spy) Logf(format string, args ...any) { s.said = fmt.Sprintf("goes on: "+format, args...) }

func (s *spy) end(format string, args ...any) {
	s.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func saidBy(t *testing.T, ci string, f func(testing.TB, string, ...any)) string {
	t.Setenv("CI", ci)
	s := &spy{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(s, "no %s here", "tmpfs")
	}()
	<-done
	return s.said
}

func TestLacking(t *testing.T) {
	if got := saidBy(t, "", Lacking); got != "skipped: no tmpfs here" {
		t.Errorf("on a machine of one's own: %q", got)
	}
	if got := saidBy(t, "true", Lacking); !strings.HasPrefix(got, "failed: ") || !strings.HasSuffix(got, "no tmpfs here") {
		t.Errorf("in CI: %q", got)
	}
}

func TestLess(t *testing.T) {
	if got := saidBy(t, "", Less); got != "goes on: no tmpfs here" {
		t.Errorf("on a machine of one's own: %q", got)
	}
	if got := saidBy(t, "true", Less); !strings.HasPrefix(got, "failed: ") || !strings.HasSuffix(got, "no tmpfs here") {
		t.Errorf("in CI: %q", got)
	}
}
