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

func (s *spy) end(format string, args ...any) {
	s.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func lacking(t *testing.T, ci string) string {
	t.Setenv("CI", ci)
	s := &spy{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		Lacking(s, "no %s here", "tmpfs")
	}()
	<-done
	return s.said
}

func TestLacking(t *testing.T) {
	if got := lacking(t, ""); got != "skipped: no tmpfs here" {
		t.Errorf("on a machine of one's own: %q", got)
	}
	if got := lacking(t, "true"); !strings.HasPrefix(got, "failed: ") || !strings.HasSuffix(got, "no tmpfs here") {
		t.Errorf("in CI: %q", got)
	}
}
