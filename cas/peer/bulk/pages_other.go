//go:build !linux

package bulk

func untilLargePage([]byte) int { return 0 }

func wantLargePages([]byte) {}
