package disk

import "testing"

// Two updates of one moment both mean to carry the opening's note. The second comes after
// what may have changed since the first, and says nothing.
func TestOpeningIsSaidOnce(t *testing.T) {
	s, err := Open(Config{Dir: t.TempDir(), NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	late := &opening{session: s.session, lost: true}
	if err := s.update(func(u *update) error { u.setMeta("lost", 0); u.setMeta("clean", 1); return nil }); err != nil {
		t.Fatal(err)
	}
	s.unsaid.Store(late)
	if err := s.update(func(*update) error { return nil }); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]uint64{"lost": 0, "clean": 1, "session": s.session} {
		if got, err := s.meta(name); err != nil || got != want {
			t.Errorf("%s is %d, not %d: %v", name, got, want, err)
		}
	}
	if s.unsaid.Load() != nil {
		t.Error("it is meant to be said once more")
	}
}
