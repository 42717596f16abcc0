"""Claim: every method, measured side by side with one engine and one verification.

Table: none in a paper. Each compares its own method with a few others, each measured
in another engine; the survey nearest to it is Spec-Bench (Xia et al. 2024), whose
kinds of prompts are taken here.
Command: `jspec bench zoo -o benchmarks/results` (two to three hours on two cores, goes
on where it was stopped); `jspec bench zoo --quick` in less than ten minutes.
Expected: greedy text equals plain decoding's for every method; the best method is at
least 1.5 times as fast as plain decoding at batch 1. On the same machine tau of greedy
text comes out equal each time, and a median speed-up within 15 %.
"""
