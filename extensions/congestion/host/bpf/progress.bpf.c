// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * A TCP congestion control whose window grows the faster the more of an iteration's bytes a connection has sent.
 *
 * The idea is that of MLTCP (S. Rajasekaran, S. Narang, A. A. Zabreyko, M. Ghobadi, "MLTCP: A distributed technique to approximate
 * centralized flow scheduling for machine learning", HotNets 2024); the program is our own. Growth and reduction are those of RFC 5681:
 * one segment a round trip, times F(r) = slope * r + intercept, where r is the share of the iteration's bytes that are acknowledged; half
 * the window after a loss. Of two jobs that send at once, the one that began first has sent more, takes more of the link, ends earlier, and
 * begins the next iteration still earlier: they move apart until they no longer send at once.
 *
 * An iteration begins with an acknowledgement that comes long after the last one: `gap_us`, or if that is 0 half of the usual gap.
 * Its bytes are `bytes`, or if that is 0 the most of the last iterations. Until anything is known, F is 1.
 *
 * Parameters are the connection's (map `parameters`, written by whoever holds its socket); without them, and when the lease has ended, F
 * is 1 and it is RFC 5681. What is known of the iteration is in the map `progress`, for whoever holds the socket to read.
 *
 * Declarations are those members that are used, found by name in the running kernel's BTF. `make bpf` compiles them. A member of some bits
 * needs BPF_CORE_READ_BITFIELD: a plain access finds the byte, and takes the bits of the declaration here.
 */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int s32;
typedef unsigned long long u64;
typedef u8 __u8;
typedef u16 __u16;
typedef u32 __u32;
typedef u64 __u64;
typedef s32 __s32;
typedef long long __s64;
typedef u16 __be16;
typedef u32 __be32;
typedef u32 __wsum;
enum { BPF_MAP_TYPE_ARRAY = 2, BPF_MAP_TYPE_SK_STORAGE = 24 };
enum { BPF_F_NO_PREALLOC = 1, BPF_SK_STORAGE_GET_F_CREATE = 1 };

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define HERE __attribute__((preserve_access_index))
#define always static __attribute__((always_inline))
#define LEAST 2u
#define NEVER 0x7fffffffu /* TCP_INFINITE_SSTHRESH; no window and no threshold is larger */
#define TCP_CA_CWR 2
#define TCP_CA_LOSS 4
#define ONE 1024u /* F, slope and intercept are in parts of it */
#define LEAST_GAP_US 2000u
#define ROUND_TRIPS 4u /* a gap is longer than so many of them */

struct sock {
	unsigned long sk_pacing_rate;
} HERE;
struct inet_connection_sock {
	u8 icsk_ca_state : 5;
} HERE;
struct tcp_sock {
	struct inet_connection_sock inet_conn;
	u32 snd_cwnd, snd_ssthresh, srtt_us, max_packets_out, mss_cache, delivered;
	u8 is_cwnd_limited : 1;
	u64 bytes_acked;
} HERE;
struct ack_sample {
	u32 pkts_acked;
} HERE;
struct tcp_congestion_ops {
	void (*init)(struct sock *sk);
	u32 (*ssthresh)(struct sock *sk);
	void (*cong_control)(struct sock *sk, u32 ack, int flag, const void *rs);
	void (*pkts_acked)(struct sock *sk, const struct ack_sample *sample);
	u32 (*undo_cwnd)(struct sock *sk);
	char name[16];
};

/* Until when what the holder said counts (CLOCK_MONOTONIC, ns). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} lease SEC(".maps");

struct wanted {
	u32 slope, intercept, gap_us, unused;
	u64 bytes;
};
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct wanted);
} parameters SEC(".maps");

/* since: bytes acknowledged before this iteration. total: bytes of one, 0 if unknown. usual_us: the gap between two. cwnd: as left last. */
struct known {
	u64 since, total, last_ns;
	u32 usual_us, iterations, factor, credit, prior, delivered, cwnd, unused;
};
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct known);
} progress SEC(".maps");

/* Not all that is acknowledged after `gap_us` begins an iteration: then the usual gap and the bytes stay. */
always void look(struct tcp_sock *tp, struct known *k, struct wanted *w)
{
	u64 now = bpf_ktime_get_ns(), gap_us = (now - k->last_ns) / 1000, sent = tp->bytes_acked - k->since;
	u32 least = (tp->srtt_us >> 3) * ROUND_TRIPS, most;

	k->last_ns = now;
	if (w->gap_us)
		least = w->gap_us;
	else {
		if (least < LEAST_GAP_US)
			least = LEAST_GAP_US;
		if (least < k->usual_us / 2)
			least = k->usual_us / 2;
	}
	if (gap_us <= least)
		return;
	/* One gap is no rule: the first of a connection may be the time that a program takes to begin. */
	most = 4 * (k->usual_us ? k->usual_us : LEAST_GAP_US);
	if (gap_us > most)
		gap_us = most;
	k->usual_us = k->usual_us - k->usual_us / 4 + (u32)gap_us / 4;
	if (sent) {
		u64 less = k->total - k->total / 8;

		k->total = sent > less ? sent : less;
		k->iterations++;
	}
	k->since = tp->bytes_acked;
}

always u32 factor(struct tcp_sock *tp, struct known *k, struct wanted *w)
{
	u64 total = w->bytes ? w->bytes : k->total, sent = tp->bytes_acked - k->since, *until;
	u32 zero = 0;

	until = bpf_map_lookup_elem(&lease, &zero);
	if (!until || *until < bpf_ktime_get_ns() || !total)
		return ONE;
	return w->intercept + (sent < total ? (u32)(w->slope * sent / total) : w->slope);
}

SEC("struct_ops/progress_init")
void BPF_PROG(progress_init, struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct known *k = bpf_sk_storage_get(&progress, tp, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (!k)
		return;
	__builtin_memset(k, 0, sizeof(*k));
	k->since = tp->bytes_acked;
	k->last_ns = bpf_ktime_get_ns();
	k->factor = ONE;
	k->delivered = tp->delivered;
	k->cwnd = tp->snd_cwnd;
}

SEC("struct_ops/progress_acked")
void BPF_PROG(progress_acked, struct sock *sk, const struct ack_sample *sample)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct known *k = bpf_sk_storage_get(&progress, tp, 0, 0);
	struct wanted *w = bpf_sk_storage_get(&parameters, tp, 0, 0);

	if (!k || !w)
		return;
	look(tp, k, w);
	k->factor = factor(tp, k, w);
}

/*
 * Linux 6.18 was seen to go on with 0x81101110 in place of what `ssthresh` returns, some times a minute, without the program being run.
 * Whatever the reason: what cannot be is put right at the next acknowledgement, which is the same one, as nothing but `control` uses it.
 */
always void mend(struct tcp_sock *tp, struct known *k, u8 ca)
{
	u32 half = k->cwnd / 2 < LEAST ? LEAST : k->cwnd / 2;

	if (tp->snd_ssthresh > NEVER) {
		tp->snd_ssthresh = half;
		if (ca != TCP_CA_LOSS)
			tp->snd_cwnd = half;
	}
	if (tp->snd_cwnd > NEVER)
		tp->snd_cwnd = k->cwnd;
}

/* As the kernel does for those that leave it to it; only the size of what is handed over at once depends on it. */
always void pace(struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	u32 rtt_us = tp->srtt_us >> 3;
	u64 rate;

	if (!rtt_us)
		return;
	rate = (u64)tp->snd_cwnd * tp->mss_cache * 1000000 / rtt_us;
	sk->sk_pacing_rate = tp->snd_cwnd < tp->snd_ssthresh / 2 ? rate * 2 : rate + rate / 5;
}

SEC("struct_ops/progress_control")
void BPF_PROG(progress_control, struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct known *k = bpf_sk_storage_get(&progress, tp, 0, 0);
	u8 ca = BPF_CORE_READ_BITFIELD(&tp->inet_conn, icsk_ca_state);
	u32 cwnd, acked;

	if (!k)
		return;
	acked = tp->delivered - k->delivered;
	k->delivered = tp->delivered;
	mend(tp, k, ca);
	cwnd = tp->snd_cwnd;
	/* A window that is not used says nothing of the path; while it is small, the half of it that was used does. */
	if ((ca < TCP_CA_CWR || ca == TCP_CA_LOSS) &&
	    (BPF_CORE_READ_BITFIELD(tp, is_cwnd_limited) || (cwnd < tp->snd_ssthresh && cwnd < 2 * tp->max_packets_out))) {
		if (cwnd < tp->snd_ssthresh) {
			u32 room = tp->snd_ssthresh - cwnd, first = acked < room ? acked : room;

			cwnd += first;
			acked -= first;
		}
		k->credit += acked * k->factor;
		if (acked && k->credit >= cwnd * ONE) {
			u32 more = cwnd ? k->credit / (cwnd * ONE) : 0;

			k->credit -= more * cwnd * ONE;
			cwnd += more;
		}
		tp->snd_cwnd = cwnd;
	}
	k->cwnd = tp->snd_cwnd;
	pace(sk);
}

SEC("struct_ops/progress_ssthresh")
u32 BPF_PROG(progress_ssthresh, struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct known *k = bpf_sk_storage_get(&progress, tp, 0, 0);
	u32 less = tp->snd_cwnd / 2;

	if (less < LEAST)
		less = LEAST;
	if (k) {
		k->prior = tp->snd_cwnd;
		k->credit = 0;
	}
	tp->snd_cwnd = less; /* after a timeout the kernel writes it again */
	return less;
}

SEC("struct_ops/progress_undo")
u32 BPF_PROG(progress_undo, struct sock *sk)
{
	struct tcp_sock *tp = (struct tcp_sock *)sk;
	struct known *k = bpf_sk_storage_get(&progress, tp, 0, 0);

	return k && k->prior > tp->snd_cwnd ? k->prior : tp->snd_cwnd;
}

SEC(".struct_ops")
struct tcp_congestion_ops progress_ops = {
	.init = (void *)progress_init,
	.ssthresh = (void *)progress_ssthresh,
	.cong_control = (void *)progress_control,
	.pkts_acked = (void *)progress_acked,
	.undo_cwnd = (void *)progress_undo,
	.name = "NAME-PLACE-HOLD",
};

char licence[] SEC("license") = "Dual MIT/GPL";
